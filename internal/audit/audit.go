// Package audit looks for what is unfenced, weakly fenced or wrongly fenced in a database. It owns the rules (each is one SQL
// query in rules/, an entry in the table of rules here, and a page in docs/rules/) and what a finding says. It changes nothing;
// what mends a finding is printed with it. How a report is shown is its callers' business.
//
// An audit is one read-only transaction and a handful of statements, however many tables and rules there are: the rules are
// branches of one statement, over facts that are read once for all of them.
package audit

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencectl/fencectl/internal/tableref"
)

// A Severity is how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	Error   Severity = "error"   // a write gets past a fence that is there, or that the project requires
	Warning Severity = "warning" // a fence is missing, or weaker than it looks
	Info    Severity = "info"    // worth knowing
)

// Off, among Options.Severities, is the severity of a rule that is not to report anything.
const Off Severity = "off"

// Severities lists them, the worst first.
func Severities() []Severity { return []Severity{Error, Warning, Info} }

// AtLeast says whether s is as bad as the other, or worse.
func (s Severity) AtLeast(other Severity) bool {
	return slices.Index(Severities(), s) <= slices.Index(Severities(), other)
}

// A Finding is one thing that is wrong with one object. The JSON is a contract: fields are added, never changed.
type Finding struct {
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Object   string   `json:"object"`  // what it is about, quoted as SQL wants it: public."Order Items"
	Message  string   `json:"message"` // what was found; reads on after the object
	Why      string   `json:"why"`     // why it matters
	Fix      string   `json:"fix"`     // mends it, as printed: SQL when it ends in a semicolon, else a shell command
	Docs     string   `json:"docs"`    // the rule's page
	Key      string   `json:"key"`     // the same in every run, for exemptions
}

// Summary counts.
type Summary struct {
	Tables   int `json:"tables"`   // tables that could have a fence; a partitioned table counts once
	Fenced   int `json:"fenced"`   // of them, those with guards
	Exempt   int `json:"exempt"`   // of them, those without, by exemption
	Findings int `json:"findings"` // exempted ones do not count
}

// Skipped is a rule, or a part of one, that could not run.
type Skipped struct {
	Rule   string `json:"rule"`
	Reason string `json:"reason"` // what was missing, and what gives it
}

// Ended is an exemption that exempts nothing any more: its last day has passed.
type Ended struct {
	Table  string `json:"table,omitempty"` // as the exemption has it; one of the two
	Key    string `json:"key,omitempty"`
	Until  string `json:"until"` // the day that was its last: 2027-03-31
	Reason string `json:"reason"`
}

// Report is the outcome of an audit. Its JSON is what fencectl audit prints.
type Report struct {
	Version  int       `json:"version"`  // 1
	Findings []Finding `json:"findings"` // the worst severity first, then by rule, then the busiest table first
	Summary  Summary   `json:"summary"`
	Skipped  []Skipped `json:"skipped"`
	Ended    []Ended   `json:"ended_exemptions,omitempty"`

	// Tables are those that Summary counts, by schema and name.
	Tables []Table `json:"-"`

	// Unmatched are the required patterns that no table matches; without Options.AllowUnmatched there are none.
	Unmatched []string `json:"-"`
}

// A Table is one that could have a fence, its partitions and their writes included.
type Table struct {
	Schema, Name string // as in the catalog
	Label        string // quoted as SQL wants it
	Fenced       bool
	Exempt       bool // it has no fence, and needs none

	// Rows written since the table's statistics began.
	Inserted, Updated, Deleted int64
}

// Written is the number of rows that were inserted, updated or deleted.
func (t Table) Written() int64 { return t.Inserted + t.Updated + t.Deleted }

// Worst is the worst severity among the findings; "" without any.
func (r *Report) Worst() Severity {
	if len(r.Findings) == 0 {
		return ""
	}
	return r.Findings[0].Severity
}

// An Exemption says what is not to be reported, and why. Either Table or Key is set.
type Exemption struct {
	Table  string // tables, as SCHEMA.NAME, NAME or a pattern, that need no fence; where one has a fence it is audited all the same
	Key    string // one finding, by its key
	Reason string // must not be empty

	// Until is the last day on which it holds, by UTC: a date, whatever the time of day. Zero: it has no end.
	Until time.Time
}

// name is what it exempts.
func (e Exemption) name() string { return cmp.Or(e.Table, e.Key) }

// endedBy says whether its last day has passed.
func (e Exemption) endedBy(now time.Time) bool {
	return !e.Until.IsZero() && e.Until.Format(time.DateOnly) < now.UTC().Format(time.DateOnly)
}

// Options say what the project demands. Nil means: nothing, and no exemptions.
type Options struct {
	// Required are tables, as SCHEMA.NAME, NAME or a pattern, that must be fenced: without a fence they are errors, not
	// warnings. A name without schema means tables of that name in every schema.
	Required []string

	// Exempt is what is not reported.
	Exempt []Exemption

	// Severities are those of a rule's findings, by the rule's name, where they are not to have their own; Off: there are to be
	// none. A required table without a fence is an error all the same.
	Severities map[string]Severity

	// AllowUnmatched lists required patterns that no table matches in the report, where it would be an error otherwise: the
	// table may be in another database of several.
	AllowUnmatched bool

	// Now is when an exemption has ended or not. Default: the time of the audit.
	Now time.Time
}

// An OptionError is an option that means nothing, or nothing in this database. A requirement that silently matches no table
// would be worse than none.
type OptionError struct {
	Option string // the pattern or key
	Reason string
}

func (e *OptionError) Error() string { return e.Option + ": " + e.Reason }

// Unmatched is the error of a required pattern that matches no table.
func Unmatched(pattern string) error {
	return &OptionError{Option: pattern, Reason: "no table matches it, although it is required to be fenced"}
}

// DB begins transactions: a pool or a connection.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

//go:embed rules/*.sql
var files embed.FS

func query(name string) string {
	content, err := files.ReadFile("rules/" + name + ".sql")
	if err != nil {
		panic(err) // the files are part of the build
	}
	return strings.TrimSpace(string(content))
}

// Run audits a database. The role needs no privilege for most of it; the report says what could not be looked at.
func Run(ctx context.Context, db DB, options *Options) (*Report, error) {
	if options == nil {
		options = &Options{}
	}
	wanted, err := compile(options)
	if err != nil {
		return nil, err
	}
	// The catalogs' own functions look at the present, not at the transaction's snapshot: a table that is dropped in between
	// makes them fail. That is rare, and gone the next time.
	const attempts = 3
	for attempt := 1; ; attempt++ {
		seen, err := look(ctx, db)
		if err == nil {
			return seen.report(wanted)
		}
		var pgErr *pgconn.PgError
		if attempt == attempts || !errors.As(err, &pgErr) || (pgErr.Code != "XX000" && pgErr.Code != "42P01") {
			return nil, fmt.Errorf("reading the catalogs: %w", err)
		}
	}
}

// finding is one as the rules' statement returns it.
type finding struct {
	rule, object  string
	subject       *string // tells several findings of one rule about one object apart
	severity      *string // where it differs from the rule's own
	message       string
	command       []string // mends it: words after "fencectl"
	statement     *string  // or SQL
	schema, table *string  // of the object, when it is a table
	weight        float64  // orders the findings of a rule, the greatest first
}

// observation is everything that one audit saw.
type observation struct {
	installed bool
	tables    []Table
	protected []protectedTable // read only where there are statements to compare with
	findings  []finding
	skipped   []Skipped
}

func look(ctx context.Context, db DB) (*observation, error) {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	seen := &observation{}
	may, err := readSession(ctx, tx)
	if err != nil {
		return nil, err
	}
	seen.installed = may.installed

	facts := query("facts") + ",\n"
	if may.violations {
		facts += query("violations")
	} else {
		facts += query("violations-unreadable")
	}
	statement, skipped := compose(facts, may)
	seen.skipped = skipped
	if err := seen.read(ctx, tx, statement); err != nil {
		return nil, err
	}
	altered, err := alteredFunctions(ctx, tx)
	if err != nil {
		return nil, err
	}
	seen.findings = append(seen.findings, altered...)
	if err := seen.statements(ctx, tx, may); err != nil {
		return nil, err
	}
	return seen, nil
}

// access is what there is to read, and what the role may read of it.
type access struct {
	installed  bool // the schema fencing is there
	violations bool // fencing.violation
	tokens     bool // fencing.fence, lease, source and the token sequence

	statements       string // the schema of pg_stat_statements; "" when it is not installed
	loaded, readable bool   // its library; its view
}

func readSession(ctx context.Context, tx pgx.Tx) (access, error) {
	var (
		may      access
		settings [6]string
	)
	err := tx.QueryRow(ctx, query("session")).Scan(&settings[0], &settings[1], &settings[2], &settings[3], &settings[4], &settings[5], &may.installed, &may.violations, &may.tokens,
		&may.statements, &may.loaded, &may.readable)
	return may, err
}

// branch is one query of a rule within the statement. The casts say what a NULL is one of.
const branch = `SELECT '%s'::text, part.object::text, part.subject::text, part.severity::text, part.message::text, part.command::text[],
       part.statement::text, part.schema_name::text, part.table_name::text, part.weight::float8
  FROM (
%s
) AS part (object, subject, severity, message, command, statement, schema_name, table_name, weight)`

// compose makes one statement of the rules that can run, and of the list of tables, whose rule has no name.
func compose(facts string, may access) (string, []Skipped) {
	var skipped []Skipped
	branches := []string{fmt.Sprintf(branch, "", query("tables"))}
	if may.seesStatements() {
		branches = append(branches, fmt.Sprintf(branch, protectedBranch, query("protected")))
	}
	for _, rule := range rules {
		for _, part := range rule.parts {
			if part.reads != nil && !part.reads(may) {
				// Without the schema there is nothing that these could find.
				if may.installed {
					skipped = append(skipped, Skipped{Rule: rule.Name, Reason: part.skipped})
				}
				continue
			}
			branches = append(branches, fmt.Sprintf(branch, rule.Name, query(part.file)))
		}
	}
	if may.installed && !may.violations {
		skipped = append(skipped, Skipped{Rule: "observing", Reason: "violations are not counted: this needs SELECT on fencing.violation (fencectl grant ROLE --for monitor)"})
	}
	return facts + "\n" + strings.Join(branches, "\nUNION ALL\n"), skipped
}

func (o *observation) read(ctx context.Context, tx pgx.Tx, statement string) error {
	rows, err := tx.Query(ctx, statement)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var f finding
		if err := rows.Scan(&f.rule, &f.object, &f.subject, &f.severity, &f.message, &f.command, &f.statement, &f.schema, &f.table, &f.weight); err != nil {
			return err
		}
		switch f.rule {
		case "":
		case protectedBranch:
			o.protected = append(o.protected, protectedTable{*f.schema, *f.table, f.object, *f.severity == "enforce", f.message})
			continue
		default:
			o.findings = append(o.findings, f)
			continue
		}
		t := Table{Schema: *f.schema, Name: *f.table, Label: f.object, Fenced: f.subject != nil}
		for i, written := range []*int64{&t.Inserted, &t.Updated, &t.Deleted} {
			if *written, err = strconv.ParseInt(f.command[i], 10, 64); err != nil {
				return err
			}
		}
		o.tables = append(o.tables, t)
	}
	return rows.Err()
}

// demands are compiled options.
type demands struct {
	required       []tableref.Pattern
	exempt         []exemption // those that hold
	ended          []Ended
	severities     map[string]Severity
	allowUnmatched bool
}

type exemption struct {
	Exemption
	table *tableref.Pattern
}

func compile(options *Options) (*demands, error) {
	wanted := &demands{severities: options.Severities, allowUnmatched: options.AllowUnmatched}
	now := options.Now
	if now.IsZero() {
		now = time.Now()
	}
	for name, severity := range options.Severities {
		switch {
		case ruleOrder(name) < 0:
			return nil, &OptionError{Option: name, Reason: "there is no rule of this name"}
		case severity != Off && !slices.Contains(Severities(), severity):
			return nil, &OptionError{Option: name, Reason: fmt.Sprintf("%q is no severity", severity)}
		}
	}
	for _, text := range options.Required {
		pattern, err := tableref.Parse(text)
		if err != nil {
			return nil, &OptionError{Option: text, Reason: err.Error()}
		}
		wanted.required = append(wanted.required, pattern)
	}
	for _, e := range options.Exempt {
		name := cmp.Or(e.name(), "an exemption")
		switch {
		case (e.Table == "") == (e.Key == ""):
			return nil, &OptionError{Option: name, Reason: "an exemption names either a table or a key"}
		case strings.TrimSpace(e.Reason) == "":
			return nil, &OptionError{Option: name, Reason: "an exemption needs a reason"}
		}
		compiled := exemption{Exemption: e}
		if e.Table != "" {
			pattern, err := tableref.Parse(e.Table)
			if err != nil {
				return nil, &OptionError{Option: name, Reason: err.Error()}
			}
			compiled.table = &pattern
		}
		if e.endedBy(now) {
			wanted.ended = append(wanted.ended, Ended{Table: e.Table, Key: e.Key, Until: e.Until.Format(time.DateOnly), Reason: e.Reason})
			continue
		}
		wanted.exempt = append(wanted.exempt, compiled)
	}
	return wanted, nil
}

func (d *demands) requires(schema, name string) bool {
	return slices.ContainsFunc(d.required, func(p tableref.Pattern) bool { return p.MatchTable(schema, name) })
}

func (d *demands) exemptsTable(schema, name string) bool {
	return slices.ContainsFunc(d.exempt, func(e exemption) bool { return e.table != nil && e.table.MatchTable(schema, name) })
}

func (d *demands) exemptsKey(key string) bool {
	return slices.ContainsFunc(d.exempt, func(e exemption) bool { return e.Key != "" && e.Key == key })
}

// report turns what was seen into what is said about it.
func (o *observation) report(wanted *demands) (*Report, error) {
	report := &Report{Version: 1, Findings: []Finding{}, Skipped: []Skipped{}, Ended: wanted.ended, Tables: o.tables}
	for _, s := range o.skipped {
		if wanted.severities[s.Rule] != Off {
			report.Skipped = append(report.Skipped, s)
		}
	}

	for _, pattern := range wanted.required {
		if slices.ContainsFunc(o.tables, func(t Table) bool { return pattern.MatchTable(t.Schema, t.Name) }) {
			continue
		}
		if !wanted.allowUnmatched {
			return nil, Unmatched(pattern.String())
		}
		report.Unmatched = append(report.Unmatched, pattern.String())
	}
	slices.SortFunc(o.tables, func(a, b Table) int {
		return cmp.Or(cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Name, b.Name))
	})
	unfenced := map[[2]string]bool{}
	report.Summary.Tables = len(o.tables)
	for i := range o.tables {
		t := &o.tables[i]
		switch {
		case t.Fenced:
			report.Summary.Fenced++
			continue
		case wanted.exemptsTable(t.Schema, t.Name):
			report.Summary.Exempt++
			t.Exempt = true
		}
		unfenced[[2]string{t.Schema, t.Name}] = true
	}

	weights := map[string]float64{}
	for _, f := range o.findings {
		rule := rules[slices.IndexFunc(rules, func(r Rule) bool { return r.Name == f.rule })]
		out := Finding{
			Rule: rule.Name, Severity: rule.Severity, Object: f.object, Message: f.message, Why: rule.Why, Docs: rule.Docs(),
			Key: rule.Name + ":" + f.object,
		}
		if f.severity != nil {
			out.Severity = Severity(*f.severity)
		}
		if severity, ok := wanted.severities[rule.Name]; ok {
			out.Severity = severity
		}
		if f.subject != nil {
			out.Key += ":" + *f.subject
		}
		if f.statement != nil {
			out.Fix = *f.statement
		} else {
			out.Fix = o.shellCommand(f.command)
		}
		if f.schema != nil && f.table != nil {
			if unfenced[[2]string{*f.schema, *f.table}] && wanted.exemptsTable(*f.schema, *f.table) {
				continue
			}
			if rule.Name == unfencedTable && wanted.requires(*f.schema, *f.table) {
				out.Severity = Error
			}
		}
		if out.Severity == Off || wanted.exemptsKey(out.Key) {
			continue
		}
		weights[out.Key] = f.weight
		report.Findings = append(report.Findings, out)
	}
	slices.SortStableFunc(report.Findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(Severities(), a.Severity), slices.Index(Severities(), b.Severity)),
			cmp.Compare(ruleOrder(a.Rule), ruleOrder(b.Rule)),
			cmp.Compare(weights[b.Key], weights[a.Key]),
			cmp.Compare(a.Key, b.Key),
		)
	})
	report.Summary.Findings = len(report.Findings)
	return report, nil
}

// shellCommand is a call of fencectl as a POSIX shell reads it.
func (o *observation) shellCommand(words []string) string {
	quoted := make([]string, 0, len(words)+1)
	quoted = append(quoted, "fencectl")
	for _, word := range words {
		quoted = append(quoted, shellQuote(word))
	}
	command := strings.Join(quoted, " ")
	if !o.installed {
		command = "fencectl install && " + command
	}
	return command
}

func shellQuote(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:-"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
