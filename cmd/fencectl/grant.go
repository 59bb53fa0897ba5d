package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencectl/fencectl/internal/connect"
	"github.com/fencectl/fencectl/internal/privileges"
)

// purposes is the flag --for: one purpose or several, separated by commas or repeated.
type purposes []privileges.Purpose

func (p *purposes) Type() string { return "app|migrate|monitor|operate" }

func (p *purposes) String() string {
	words := make([]string, len(*p))
	for i, purpose := range *p {
		words[i] = string(purpose)
	}
	return strings.Join(words, ",")
}

func (p *purposes) Set(text string) error {
	for _, word := range strings.Split(text, ",") {
		known := false
		for _, purpose := range privileges.Purposes() {
			if string(purpose) == strings.TrimSpace(word) {
				*p, known = append(*p, purpose), true
			}
		}
		if !known {
			return errors.New("use app, migrate, monitor, operate or several of them")
		}
	}
	return nil
}

func (a *app) grantCommand() *cobra.Command {
	var (
		wanted purposes
		dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "grant ROLE",
		Short: "Give a role what it needs of the fencing schema",
		Long: `Give a role what it needs of the fencing schema. Presenting a token needs no grant: every role may.

  app      claims fences, draws tokens, holds leases
  migrate  protects and unprotects the tables that it owns
  monitor  sees fences, leases, violations and what is protected
  operate  lowers fences, adopts token sources, sees what monitor sees

Run it as the owner of the fencing schema.

` + exitStatus,
		Example: `  fencectl grant shop_app
  fencectl grant shop_migrations --for migrate
  fencectl grant shop_oncall --for monitor,operate --dry-run`,
		Args: arguments(cobra.ExactArgs(1), "the name of one role"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(wanted) == 0 {
				wanted = purposes{privileges.App}
			}
			server, err := a.open(cmd.Context(), connect.Options{Installed: true, Write: !dryRun})
			if err != nil {
				return err
			}
			defer server.Close()
			statements, err := privileges.Plan(cmd.Context(), server.Pool, args[0], wanted)
			if err != nil {
				return err
			}
			if dryRun {
				fmt.Fprintln(a.stdout, "BEGIN;")
				for _, statement := range statements {
					fmt.Fprintf(a.stdout, "%s;\n", statement)
				}
				fmt.Fprintln(a.stdout, "COMMIT;")
				return nil
			}
			if err := privileges.Grant(cmd.Context(), server.Pool, statements); err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "role %s can now work as %s\n", oneLine(args[0]), strings.ReplaceAll(wanted.String(), ",", ", "))
			return nil
		},
	}
	cmd.Flags().Var(&wanted, "for", "what the role does (default app); several with commas")
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"app", "migrate", "monitor", "operate"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print the SQL and run nothing")
	return cmd
}
