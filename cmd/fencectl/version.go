package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/connect"
)

// version is set by the linker in releases; otherwise what the Go toolchain recorded is used.
var version = ""

// versionReport is what fencectl version prints with --format json.
type versionReport struct {
	Version       int    `json:"version"`        // 1, the version of this document
	Fencectl      string `json:"fencectl"`       // such as "v0.1.0", or "devel"
	Commit        string `json:"commit"`         // "" when not known
	Go            string `json:"go"`             // the toolchain, such as "go1.26.8"
	SchemaVersion string `json:"schema_version"` // of the fencing schema that install makes
}

func (a *app) versionCommand() *cobra.Command {
	var format *choice
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of fencectl and of the schema it installs",
		Long:  "Show the version of fencectl, and of the fencing schema that it installs.\n\n" + exitStatus,
		Example: `  fencectl version
  fencectl version --format json`,
		Args: arguments(cobra.NoArgs, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			report := versions()
			if format.json() {
				return printJSON(a.stdout, report)
			}
			commit := ""
			if report.Commit != "" {
				commit = ", commit " + report.Commit[:min(12, len(report.Commit))]
			}
			fmt.Fprintf(a.stdout, "fencectl %s (fencing schema %s%s, %s %s/%s)\n",
				report.Fencectl, report.SchemaVersion, commit, report.Go, runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
	format = formatFlag(cmd)
	return cmd
}

func versions() versionReport {
	report := versionReport{Version: 1, Fencectl: version, Go: runtime.Version(), SchemaVersion: connect.SchemaVersion}
	info, ok := debug.ReadBuildInfo()
	if ok {
		if report.Fencectl == "" && info.Main.Version != "(devel)" {
			report.Fencectl = info.Main.Version
		}
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				report.Commit = setting.Value
			}
		}
	}
	if report.Fencectl == "" {
		report.Fencectl = "devel"
	}
	return report
}
