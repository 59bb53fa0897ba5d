package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// operation is one statement. Which fields it uses, its verb says.
type operation struct {
	verb   string
	name   string // of a savepoint or a fence; what is set
	token  int64
	table  string
	id     int    // 0 for all rows
	acct   int    // of an insert; of an update that moves the row, else 0
	column *int64 // what the statement sets the column to; nil where it does not mention it
}

// sql is the operation as a statement; n tells which one has written a row.
func (o operation) sql(n int) string {
	where := ""
	if o.id != 0 {
		where = fmt.Sprintf(" WHERE id = %d", o.id)
	}
	switch o.verb {
	case "SAVEPOINT", "RELEASE", "ROLLBACK TO":
		return o.verb + " " + o.name
	case "present":
		return fmt.Sprintf("SELECT fencing.present(%d)", o.token)
	case "present for":
		return fmt.Sprintf("SELECT fencing.present(%d, '%s')", o.token, o.name)
	case "set":
		return fmt.Sprintf("SET LOCAL fencing.token = '%s'", o.name)
	case "hold":
		return fmt.Sprintf("SELECT fencing.hold('%s', %d)", o.name, o.token)
	case "claim":
		return fmt.Sprintf("SELECT fencing.claim('%s', %d)", o.name, o.token)
	case "lower":
		return fmt.Sprintf("SELECT fencing.lower_fence('%s', %d, 'a test')", o.name, o.token)
	case "insert", "upsert":
		columns, values := "id, acct, note", fmt.Sprintf("%d, %d, %d", o.id, o.acct, n)
		if o.column != nil {
			columns, values = columns+", last_fencing_token", fmt.Sprintf("%s, %d", values, *o.column)
		}
		text := fmt.Sprintf("INSERT INTO public.%s (%s) VALUES (%s)", o.table, columns, values)
		if o.verb == "upsert" {
			text += " ON CONFLICT (id, acct) DO UPDATE SET note = excluded.note"
		}
		return text
	case "update":
		set := fmt.Sprintf("note = %d", n)
		if o.acct != 0 {
			set += fmt.Sprintf(", acct = %d", o.acct)
		}
		if o.column != nil {
			set += fmt.Sprintf(", last_fencing_token = %d", *o.column)
		}
		return fmt.Sprintf("UPDATE public.%s SET %s%s", o.table, set, where)
	case "delete":
		return fmt.Sprintf("DELETE FROM public.%s%s", o.table, where)
	case "truncate":
		return "TRUNCATE public." + o.table
	default:
		return o.verb
	}
}

// spelled are ways to set the token by hand. Few of them are tokens.
var spelled = []string{"3", "4", "", "0", "-4", "+4", " 4 ", "004", "abc", "4.0", "4e0", "0x4", "9223372036854775807", "9223372036854775808", "00000000000000000004"}

// random chooses an operation on one of some tables. Tokens are small, so that they often meet; one is of another epoch.
func random(r *rand.Rand, s *session, among []kind) operation {
	token := func() int64 {
		return []int64{0, -2, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4, 4, 5, 6, 1<<48 | 1}[r.IntN(18)]
	}
	fence := func() string { return []string{"nightly", "acct/1", "acct/1", "acct/2", "other"}[r.IntN(5)] }
	name := func() string { return []string{"a", "b"}[r.IntN(2)] }
	k := among[r.IntN(len(among))]
	o := operation{table: k.table, id: 1 + r.IntN(4)}
	column := func(one int) {
		if k.row && r.IntN(one) == 0 {
			n := []int64{-3, 0, 1, 2, 3, 4, 5, 6, 1<<48 | 1}[r.IntN(9)]
			o.column = &n
		}
	}

	// A failed transaction goes back or ends, mostly; a session without one begins one; one that has presented nothing does.
	choice := r.IntN(100)
	switch presents := s.token != "" || len(s.tokens) > 0; {
	case s.failed && r.IntN(10) > 0:
		choice = 84 + r.IntN(16)
	case !s.open && choice < 85:
		return operation{verb: "BEGIN"}
	case s.open && !presents && choice < 60:
		choice = r.IntN(18)
	}
	savepoint := name()
	if len(s.savepoints) > 0 {
		savepoint = s.savepoints[r.IntN(len(s.savepoints))].name
	} else if choice >= 82 && choice < 92 && r.IntN(8) > 0 {
		choice += 10 // rather than back to one that is not there
	}
	switch {
	case choice < 12:
		return operation{verb: "present", token: token()}
	case choice < 15:
		return operation{verb: "hold", token: token(), name: fence()}
	case choice < 18:
		return operation{verb: "present for", token: token(), name: fence()}
	case choice < 22:
		return operation{verb: "set", name: spelled[r.IntN(len(spelled))]}
	case choice < 28:
		return operation{verb: "claim", token: token(), name: fence()}
	case choice < 29:
		return operation{verb: "lower", token: token(), name: fence()}
	case choice < 37:
		o.verb, o.acct = []string{"insert", "upsert"}[r.IntN(2)], 1+r.IntN(2)
		if slices.Contains([]string{"strict", "reentrant", "required", "partitioned"}, k.table) {
			column(3)
		}
		// What conflicts is the key, id and acct: the row that is there keeps its acct.
		if at, exists := s.rows[rowID{k.table, o.id}]; exists {
			o.acct = at.acct
		}
		return o
	case choice < 65:
		o.verb = "update"
		if r.IntN(4) == 0 {
			o.acct = 1 + r.IntN(2)
		}
		if r.IntN(6) == 0 {
			o.id = 0
		}
		column(3)
		return o
	case choice < 73:
		o.verb = "delete"
		if r.IntN(8) == 0 {
			o.id = 0
		}
		return o
	case choice < 75:
		return operation{verb: "truncate", table: k.table}
	case choice < 82:
		return operation{verb: "SAVEPOINT", name: name()}
	case choice < 84:
		return operation{verb: "RELEASE", name: savepoint}
	case choice < 92:
		return operation{verb: "ROLLBACK TO", name: savepoint}
	case choice < 98:
		return operation{verb: "COMMIT"}
	default:
		return operation{verb: "ROLLBACK"}
	}
}

// script is a sequence for psql.
func script(operations []operation) string {
	var b strings.Builder
	for i, o := range operations {
		b.WriteString(o.sql(i+1) + ";\n")
	}
	return b.String()
}
