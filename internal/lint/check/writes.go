package check

import (
	"fmt"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/sqlfile"
)

// checkFenced reports a write of a protected table that neither sets nor presents a token.
func (st *statement) checkFenced(w *write) {
	p := w.protection
	if p == nil {
		return
	}
	u := st.unit
	if w.action == truncate && !p.GuardsStatements() {
		if u.session.bypassed {
			return
		}
		fence := "its fences are in its rows"
		if p.Template() {
			fence = "each of its rows has a fence of its own"
		}
		st.report(st.at(w.relation), lint.TruncateRefused, w.table.Label(), fmt.Sprintf("TRUNCATE of %s is always refused: %s", w.labelOf(), fence),
			"Use DELETE, which is checked row by row; or let the owner begin the transaction with SELECT fencing.bypass('why').")
		return
	}
	if (w.action == insert || w.action == copyFrom) && p.Row() && !p.RequireInserts {
		return // a new row has no fence yet
	}
	switch {
	case p.Row() && st.setsToken(w), p.Row() && st.badToken(w):
		return // the token is in the row; or what is there is reported for itself
	case st.presents && !p.GuardsStatements():
		return
	case st.inFunction:
		return // its transaction is the caller's
	case u.file.Generated:
		return // its transaction is that of the generated method
	case u.session.presented(), u.session.bypassed:
		return
	}
	if here := u.presentedHere(st.index); here || u.presentedBy != "" {
		u.counts.presented++
		return
	}
	use := usage{}
	if st.name != "" && u.queries != nil {
		if use = u.queries(st.name); use.presented {
			u.counts.presented++
			return
		}
	}
	message := fmt.Sprintf("%s of %s presents no token", w.verb(), w.labelOf())
	switch {
	case st.presents:
		message = fmt.Sprintf("%s of %s presents its token too late: the guard of a fence for the whole table fires before anything in the statement is evaluated", w.verb(), w.labelOf())
	case st.unused:
		message = fmt.Sprintf("%s of %s presents no token: nothing refers to the WITH query that would, and PostgreSQL does not run it", w.verb(), w.labelOf())
	case u.session.lost != "":
		message = fmt.Sprintf("%s of %s presents no token: the one of %s was presented in a transaction of its own, which has ended", w.verb(), w.labelOf(), u.session.lost)
	case use.outside != "":
		message += fmt.Sprintf(", and %s runs it outside a transaction that does", use.outside)
	case w.action == remove && p.Row() && st.comparesToken(w):
		message += ": comparing with it is not presenting it, and a DELETE has no row to set it in"
	}
	st.report(st.at(w.relation), lint.UnfencedWrite, w.table.Label(), message, st.fixFor(w, use))
}

// comparesToken says whether a condition has the token's column in it.
func (st *statement) comparesToken(w *write) bool {
	for _, where := range w.where {
		e := st.expressionOf(where)
		for _, column := range e.columns {
			if of, _ := st.tokenOwner(column, w); of == targets {
				return true
			}
		}
	}
	return false
}

// fixFor is what to do about a write without a token, which depends on who runs it.
func (st *statement) fixFor(w *write, use usage) string {
	u, p := st.unit, w.protection
	inStatement := ""
	operator := map[bool]string{false: "<", true: "<="}[p.Reentrant]
	switch {
	case p.GuardsStatements():
	case p.Row() && (w.action == update || w.action == upsert):
		inStatement = fmt.Sprintf("SET %s = fencing.present(%s)", fenced.ColumnName, u.parameter())
	case p.Row() && w.action == remove:
		inStatement = fmt.Sprintf("WHERE … AND %s %s fencing.present(%s)", fenced.ColumnName, operator, u.parameter())
	case p.Row():
		inStatement = fmt.Sprintf("put fencing.present(%s) into %s", u.parameter(), fenced.ColumnName)
	case w.action == update || w.action == remove:
		inStatement = fmt.Sprintf("WHERE … AND fencing.present(%s) > 0", u.parameter())
	}
	switch {
	case u.file.Kind == sqlfile.Migration:
		return "Let the owner, who runs the migration, begin it with SELECT fencing.bypass('what it is for'), or write under a lock and begin it with SELECT fencing.present(…)."
	case st.tree.Kind == "DoStmt" || st.inBlock:
		return "Begin the block with PERFORM fencing.present(…)."
	case u.inGo:
		fix := "Run it in the transaction that fenced.Run hands over"
		if inStatement != "" {
			fix += ", or present the token in the statement: " + inStatement
		}
		return fix + ". Where a transaction presents it that cannot be seen from here, say so: // fencectl:presented REASON."
	case u.file.Kind == sqlfile.Queries:
		fix := "Run it in a transaction of fenced.Run"
		if inStatement != "" {
			fix += ", or present the token in the statement: " + inStatement
		}
		if use.outside != "" {
			return fix + "."
		}
		return fix + ". Where it does run in one, lint the Go source as well (fencectl lint ./...), which shows it, or say so: -- fencectl:presented REASON, or lint.presented in fencectl.yaml."
	}
	return fmt.Sprintf("Write BEGIN; SELECT fencing.present(%s); … COMMIT;. Where the session has a token, as under fencectl lock, say so at the top: -- fencectl:presented-file REASON.", u.parameter())
}

// checkGenerated reports a write by hand of a table that has generated methods.
func (st *statement) checkGenerated(w *write) {
	u := st.unit
	if w.protected == nil || u.generated == nil || u.file.Generated || (u.file.Kind != sqlfile.Queries && !u.inGo) {
		return
	}
	if u.generated(w.protected) {
		st.report(st.at(w.relation), lint.GeneratedBypassed, w.table.Label(), fmt.Sprintf("%s of %s is written by hand, beside the methods that fencectl generate writes", w.verb(), w.labelOf()),
			"Use a generated method; for a change that there is none for, name it in fencectl.yaml under generate and run fencectl generate.")
	}
}
