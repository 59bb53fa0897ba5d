package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencectl/fencectl/fenced"
	"github.com/fencectl/fencectl/internal/lint"
	"github.com/fencectl/fencectl/internal/lint/pgtree"
	"github.com/fencectl/fencectl/internal/lint/sqlfile"
)

// A session is what the statements before have left: what a psql that runs the script would know.
type session struct {
	explicit bool   // in a transaction that a BEGIN began
	whole    bool   // everything is in one transaction, without a BEGIN
	inTx     bool   // what this transaction has presented holds for the next statement
	txToken  bool   // the transaction has presented
	token    bool   // the session has, by a setting that outlives the transaction
	lost     string // the line of a presentation whose transaction has ended
	bypassed bool   // the transaction is let through

	read    string // the first read of a protected table since the transaction, or the session, began: "public.jobs on line 4"
	claimed *claim // in this transaction
	claims  int    // in the session

	owns map[string]bool // tables that the script has made
}

// A claim is one that was made in a transaction.
type claim struct {
	st     *statement
	offset int
	told   bool
}

// reset begins a session. A migration is one transaction, and so is what a program sends as one text.
func (s *session) reset(u *unit, direction sqlfile.Direction) {
	whole := u.inGo || (direction != "" && !u.file.Bare)
	*s = session{whole: whole, inTx: whole, owns: map[string]bool{}}
}

func (s *session) presented() bool { return s.token || s.txToken }

func (s *session) own(name string) {
	if name != "" {
		s.owns[name] = true
	}
}

// after does to the session what a statement does.
func (s *session) after(st *statement) {
	if st.tree.Kind == "TransactionStmt" {
		s.transaction(st.tree.Text("kind"))
		return
	}
	here := fmt.Sprintf("line %d", st.unit.place(st.start).line)
	if st.presents || st.setsLocally(isTokenSetting) {
		switch {
		case s.inTx:
			s.txToken = true
		case len(st.writes) == 0: // one that writes has presented for itself
			s.lost = here
		}
	}
	if st.setsSession(isTokenSetting) {
		s.token = true
	}
	if s.inTx && slices.ContainsFunc(st.calls, func(c call) bool { return c.is("bypass") }) {
		s.bypassed = true
	}
	if s.read == "" {
		if table := st.readsProtected(); table != "" {
			s.read = table + " on " + here
		}
	}
}

func (s *session) transaction(kind string) {
	switch kind {
	case "TRANS_STMT_BEGIN", "TRANS_STMT_START":
		s.explicit, s.inTx = true, true
		s.read = ""
	case "TRANS_STMT_COMMIT", "TRANS_STMT_ROLLBACK", "TRANS_STMT_PREPARE":
		s.explicit, s.inTx = false, s.whole
		s.txToken, s.bypassed, s.claimed, s.lost, s.read = false, false, nil, "", ""
	}
}

// readsProtected is the first protected table that a statement reads; "" without any.
func (st *statement) readsProtected() string {
	switch st.tree.Kind {
	case "SelectStmt", "InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt", "CopyStmt", "CreateTableAsStmt", "DeclareCursorStmt":
	default:
		return ""
	}
	for _, read := range st.reads {
		if read.Text("schemaname") == "" && st.ctes[read.Text("relname")] {
			continue
		}
		if t := st.unit.catalog.Find(read.Text("schemaname"), read.Text("relname")); t != nil {
			if p, _ := t.Protection(); p != nil && !p.Row() {
				return t.Label()
			}
		}
	}
	return ""
}

// setting is what a SET sets; nothing for any other statement.
func setting(n pgtree.Node) (name string, local, sets bool) {
	if n.Kind != "VariableSetStmt" || n.Text("kind") != "VAR_SET_VALUE" {
		return "", false, false
	}
	return n.Text("name"), n.Bool("is_local"), true
}

func (st *statement) setsLocally(is func(string) bool) bool {
	name, local, sets := setting(st.tree)
	return sets && local && is(name)
}

func (st *statement) setsSession(is func(string) bool) bool {
	if name, local, sets := setting(st.tree); sets && !local && is(name) {
		return true
	}
	return slices.ContainsFunc(st.calls, func(c call) bool {
		args := c.node.List("args")
		return c.name == "set_config" && len(args) == 3 && is(constant(args[0])) && !isTrue(args[2])
	})
}

func isTrue(n pgtree.Node) bool {
	n = uncast(n)
	return n.Node("boolval").Bool("boolval") || constant(n) == "t" || constant(n) == "true"
}

// checkSession reports what is wrong with the order of statements and with settings.
func (st *statement) checkSession() {
	st.checkClaims()
	st.checkSettings()
	if st.unit.file.Kind == sqlfile.Migration || st.unit.layer {
		return
	}
	for _, c := range st.calls {
		if c.is("bypass") {
			st.report(st.at(c.node), lint.BypassUsed, "", "fencing.bypass lets every write of its transaction through, and only works for the table's owner",
				"Present the token: fencing.present("+st.unit.parameter()+"). Keep fencing.bypass for migrations, and for repairs by hand.")
		}
	}
}

func (st *statement) checkClaims() {
	u := st.unit
	s := &u.session
	for _, c := range st.calls {
		if !c.is("claim") || u.layer {
			continue
		}
		at := st.at(c.node)
		fix := "Claim in a transaction of its own, before the first read: in Go fenced.Claim does, in a script a SELECT fencing.claim(…); without a BEGIN before it."
		switch {
		case slices.ContainsFunc(st.writes, func(w write) bool { return w.protection != nil }):
			st.report(at, lint.ClaimOrder, "", "the fence is claimed by the statement that writes: the claim waits for older writers with locks in its hands", fix)
		case st.readsProtected() != "":
			st.report(at, lint.ClaimOrder, "", "the fence is claimed by the statement that reads "+st.readsProtected()+": what it reads is from before it waited", fix)
		case s.read != "" && (s.explicit || s.claims == 0):
			st.report(at, lint.ClaimOrder, "", "the fence is claimed after the read of "+s.read+": what an older holder commits meanwhile is overwritten unseen", fix)
		case s.explicit || (s.whole && u.inGo):
			s.claimed = &claim{st: st, offset: at}
		}
		s.claims++
	}
	if s.claimed != nil && !s.claimed.told && s.claimed.st != st {
		for _, w := range st.writes {
			if w.protection != nil {
				s.claimed.told = true
				s.claimed.st.report(s.claimed.offset, lint.ClaimOrder, "", fmt.Sprintf("the fence is claimed in the transaction that writes %s (line %d): two of them can deadlock, and what the second one reads is from before it waited",
					w.table.Label(), st.unit.place(st.at(w.relation)).line), "Commit after the claim, and write in a second transaction, which presents the token.")
				return
			}
		}
	}
}

func (st *statement) checkSettings() {
	name, local, sets := setting(st.tree)
	what := ""
	switch st.tree.Kind {
	case "AlterRoleSetStmt":
		name, _, sets = setting(asSet(st.tree.Node("setstmt")))
		what = "of the role"
	case "AlterDatabaseSetStmt":
		name, _, sets = setting(asSet(st.tree.Node("setstmt")))
		what = "of the database"
	case "AlterSystemStmt":
		name, _, sets = setting(asSet(st.tree.Node("setstmt")))
		what = "of the server"
	}
	at := st.start
	if !sets {
		for _, c := range st.calls {
			if args := c.node.List("args"); c.name == "set_config" && len(args) == 3 && constant(args[0]) != "" {
				st.checkSetting(constant(args[0]), isTrue(args[2]), "", st.at(c.node), constant(args[1]))
			}
		}
		return
	}
	values := asSet(st.tree).List("args")
	if setstmt := st.tree.Node("setstmt"); setstmt.There() {
		values = setstmt.List("args")
	}
	value := ""
	if len(values) > 0 {
		value = constant(values[0])
	}
	st.checkSetting(name, local, what, at, value)
}

// asSet makes the SET within another statement one of its own: the parser leaves its kind out there.
func asSet(n pgtree.Node) pgtree.Node {
	n.Kind = "VariableSetStmt"
	return n
}

func (st *statement) checkSetting(name string, local bool, what string, at int, value string) {
	switch {
	case isTokenSetting(name) && !local && what != "":
		st.report(at, lint.SessionToken, "", name+" becomes a setting "+what+": every session presents that token from now on", "Remove it; each transaction presents its own token: SELECT fencing.present(…).")
	case isTokenSetting(name) && !local:
		st.report(at, lint.SessionToken, "", name+" is set for the session: it outlives the transaction, and the next user of the connection presents it",
			"Write SELECT fencing.present("+st.unit.parameter()+") or SET LOCAL, after BEGIN; or give the token to psql itself: PGOPTIONS='-c fencing.token=…', as fencectl lock does.")
	case strings.EqualFold(name, fenced.SettingBypass) && !st.unit.layer:
		st.report(at, lint.BypassUsed, "", "fencing.bypass is set as a setting, without its function", "Call SELECT fencing.bypass('why'), in a migration or by hand: it says when the role may not.")
	case strings.EqualFold(name, "session_replication_role") && strings.EqualFold(value, "replica"):
		st.report(at, lint.GuardRemoved, "", "session_replication_role = replica switches every guard off, like all ordinary triggers", "Leave the guards on. Let the owner begin the transaction with SELECT fencing.bypass('why') where a write has to get past them.")
	}
}
