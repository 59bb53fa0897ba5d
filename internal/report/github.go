package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/fencectl/fencectl/internal/audit"
)

// GitHub writes the document as commands of a GitHub workflow, which become annotations of its run. GitHub shows the first ten of
// each kind of a step, so the worst come first, and the totals before all.
//
// Every line is a command. What comes out of a database is within one, escaped, where it cannot be taken for another.
func GitHub(w io.Writer, d *Document) error {
	b := bufio.NewWriter(w)
	annotate(b, "notice", "fencectl audit", "", d.Totals())
	for _, database := range d.Databases {
		switch {
		case database.Report == nil:
			annotate(b, "error", "cannot audit "+database.Label(), "", database.Error)
		case d.Several:
			annotate(b, "notice", database.Label(), "", Totals(database.Report.Summary, database.Report.Findings))
		}
	}
	for _, e := range d.Ended() {
		annotate(b, "warning", "exemption ended", d.Settings, Sentence(e))
	}
	for _, severity := range audit.Severities() {
		for _, database := range d.Databases {
			if database.Report == nil {
				continue
			}
			for _, f := range database.Report.Findings {
				if f.Severity != severity {
					continue
				}
				title := f.Rule + ": " + f.Object
				if d.Several {
					title += " in " + database.Label()
				}
				annotate(b, commandOf(severity), title, "", f.Object+" "+f.Message+"\n"+f.Why+"\nFix: "+f.Fix+"\n"+f.Docs)
			}
		}
	}
	for _, database := range d.Databases {
		if database.Report == nil {
			continue
		}
		for _, s := range database.Report.Skipped {
			title := "not checked: " + s.Rule
			if d.Several {
				title += " in " + database.Label()
			}
			annotate(b, "notice", title, "", s.Reason)
		}
	}
	return b.Flush()
}

func commandOf(severity audit.Severity) string {
	switch severity {
	case audit.Error:
		return "error"
	case audit.Warning:
		return "warning"
	default:
		return "notice"
	}
}

// What GitHub's runner decodes: the message of a command, and the values of its properties, which are ended by a comma or a colon.
var (
	escapeMessage  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	escapeProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

func annotate(w io.Writer, command, title, file, message string) {
	properties := "title=" + escapeProperty.Replace(visible(title))
	if file != "" {
		properties = "file=" + escapeProperty.Replace(visible(file)) + "," + properties
	}
	annotateWith(w, command, properties, message)
}

func annotateWith(w io.Writer, command, properties, message string) {
	fmt.Fprintf(w, "::%s %s::%s\n", command, properties, escapeMessage.Replace(visible(message)))
}

// visible keeps what is in a name from steering the terminal that a log is shown in.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return ' '
		}
		return r
	}, text)
}
