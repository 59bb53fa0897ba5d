// Package privileges knows what a role needs of the fencing schema for each kind of work, and grants it. It is the one place
// where that is written; the SQL layer itself gives PUBLIC no more than presenting a token.
package privileges

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencectl/fencectl/internal/catalogdb"
	"github.com/fencectl/fencectl/internal/spelling"
)

// A Purpose is a kind of work with the fencing schema.
type Purpose string

// The purposes.
const (
	App     Purpose = "app"     // an application: claims fences, draws tokens, holds leases
	Migrate Purpose = "migrate" // who runs the application's migrations: protects the tables that it owns
	Monitor Purpose = "monitor" // who looks on: reads fences, leases, violations and what is protected
	Operate Purpose = "operate" // who repairs: lowers fences, adopts token sources; reads as monitor does
)

// Purposes lists them all.
func Purposes() []Purpose { return []Purpose{App, Migrate, Monitor, Operate} }

type grants struct {
	functions []string // all overloads of each
	invoker   bool     // also every function that runs with its caller's rights, and every trigger function
	relations []string
}

// reading is what the view of the protected tables needs: a view checks its functions against whoever reads it.
var reading = []string{"version", "guard_arguments", "guard_option"}

var needs = map[Purpose]grants{
	App: {
		functions: []string{"version", "claim", "hold", "next_token", "acquire_lease", "renew_lease", "release_lease", "source_epoch"},
	},
	Migrate: {
		// Only a table's owner may change its triggers, so protect and all that it calls run as the role itself. Such
		// functions give nobody a power that he does not have; those of a trigger cannot be called at all.
		invoker:   true,
		relations: []string{"protection", "guard"},
	},
	Monitor: {
		functions: reading,
		relations: []string{"protection", "guard", "fence", "lease", "source", "violation", "bypass_log", "token_seq"},
	},
	Operate: {
		functions: append([]string{"claim", "next_token", "lower_fence", "adopt_epoch", "bypass"}, reading...),
		relations: []string{"protection", "guard", "fence", "lease", "source", "violation", "bypass_log", "token_seq"},
	},
}

// RoleError says that there is no such role.
type RoleError struct{ Reason string }

func (e *RoleError) Error() string { return e.Reason }

// Plan finds the statements that give the role what it needs for the purposes. The error is a *RoleError when there is no
// such role.
func Plan(ctx context.Context, db catalogdb.DBTX, role string, purposes []Purpose) ([]string, error) {
	queries := catalogdb.New(db)
	quoted, err := quotedRole(ctx, queries, role)
	if err != nil {
		return nil, err
	}
	var functions, relations []string
	invoker := false
	for _, purpose := range purposes {
		functions = append(functions, needs[purpose].functions...)
		relations = append(relations, needs[purpose].relations...)
		invoker = invoker || needs[purpose].invoker
	}
	functions, relations = distinct(functions), distinct(relations)

	statements := []string{"GRANT USAGE ON SCHEMA fencing TO " + quoted}
	known, err := queries.FencingFunctions(ctx, catalogdb.FencingFunctionsParams{Names: functions, Invoker: invoker})
	if err != nil {
		return nil, fmt.Errorf("reading the fencing schema's functions: %w", err)
	}
	signatures := make([]string, len(known))
	for i, f := range known {
		signatures[i] = f.Signature
	}
	if len(signatures) > 0 {
		statements = append(statements, "GRANT EXECUTE ON ROUTINE "+strings.Join(signatures, ", ")+" TO "+quoted)
	}
	if len(relations) > 0 {
		statements = append(statements, "GRANT SELECT ON fencing."+strings.Join(relations, ", fencing.")+" TO "+quoted)
	}
	return statements, nil
}

// Grant carries out a plan, all of it or nothing.
func Grant(ctx context.Context, pool *pgxpool.Pool, statements []string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// quotedRole finds the role as it was written, else folded to lower case as PostgreSQL reads an unquoted name.
func quotedRole(ctx context.Context, queries *catalogdb.Queries, role string) (string, error) {
	for _, name := range distinct([]string{role, strings.ToLower(role)}) {
		found, err := queries.FindRole(ctx, name)
		if err != nil {
			return "", fmt.Errorf("looking for role %s: %w", role, err)
		}
		if len(found) > 0 {
			return found[0].Quoted, nil
		}
	}
	names, err := queries.ListRoleNames(ctx)
	if err != nil {
		return "", fmt.Errorf("reading the roles: %w", err)
	}
	if near, ok := spelling.Closest(role, names); ok {
		return "", &RoleError{fmt.Sprintf("role %s does not exist; did you mean %s?", role, near)}
	}
	return "", &RoleError{fmt.Sprintf("role %s does not exist; create it first: CREATE ROLE ... LOGIN", role)}
}

func distinct(names []string) []string {
	kept := []string{}
	for _, name := range names {
		if !slices.Contains(kept, name) {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	return kept
}
