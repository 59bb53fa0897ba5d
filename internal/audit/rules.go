package audit

import "slices"

// A Rule is one kind of finding.
type Rule struct {
	Name     string   // stable
	Severity Severity // of its findings, unless one says otherwise
	Why      string   // why it matters

	parts []part // its queries
}

// part is one query of a rule.
type part struct {
	file    string            // in rules/, without .sql
	reads   func(access) bool // whether the role may read what it reads; nil: it reads what everybody may
	skipped string            // what to say when it may not
}

// Docs is the address of the rule's page.
func (r Rule) Docs() string { return docs + r.Name + ".md" }

const docs = "https://github.com/fencectl/fencectl/blob/main/docs/rules/"

const (
	unfencedTable     = "unfenced-table"
	unfencedStatement = "unfenced-statement"
)

// Rules lists the rules in the order in which a report has them.
func Rules() []Rule { return slices.Clone(rules) }

func ruleOrder(name string) int {
	return slices.IndexFunc(rules, func(r Rule) bool { return r.Name == name })
}

func readsTokens(a access) bool { return a.tokens }

const needsTokens = "this needs SELECT on fencing.fence, fencing.lease, fencing.source and fencing.token_seq (fencectl grant ROLE --for monitor)"

var rules = []Rule{
	{
		Name: "guard-missing", Severity: Error,
		Why:   "Writes of the kind that the missing guard would check are not checked: a lock holder that has lost its lock writes over its successor.",
		parts: []part{{file: "guard-missing"}, {file: "guard-missing.fences"}},
	},
	{
		Name: "guard-disabled", Severity: Error,
		Why:   "A trigger that is switched off checks nothing: every write gets through, with an old token or with none.",
		parts: []part{{file: "guard-disabled"}, {file: "guard-disabled.replica"}, {file: "guard-disabled.fences"}},
	},
	{
		Name: "guard-altered", Severity: Error,
		Why:   "A guard that is not what was installed may let through what it should refuse, and nothing else would show it.",
		parts: []part{{file: "guard-altered"}, {file: "guard-altered.fences"}},
	},
	{
		Name: "guard-outdated", Severity: Warning,
		Why: "Newer versions mend what older guards let through. And the functions of an older version cannot be compared with what was installed.",
	},
	{
		Name: "guard-not-last", Severity: Error,
		Why:   "BEFORE triggers fire in the order of their names. One that runs after the guard can change the token, or the columns that name the fence, after they have been checked.",
		parts: []part{{file: "guard-not-last"}},
	},
	{
		Name: "column-invalid", Severity: Error,
		Why:   "The guards compare the token in this column. Where it is missing, NULL or of another type they cannot; without its default new rows do not carry the token they were written under.",
		parts: []part{{file: "column-invalid"}},
	},
	{
		Name: "partition-unguarded", Severity: Error,
		Why:   "PostgreSQL copies row triggers to new partitions, but not statement triggers, and takes the copies away from a partition that is detached.",
		parts: []part{{file: "partition-unguarded"}},
	},
	{
		Name: "inheritance-unguarded", Severity: Error,
		Why:   "Triggers are not inherited: a write of the child, or of the parent when the row is in the child, is not checked.",
		parts: []part{{file: "inheritance-unguarded"}},
	},
	{
		Name: "unlogged-table", Severity: Error,
		Why:   "After a crash the server empties unlogged tables. A fence that is gone accepts every token, however old.",
		parts: []part{{file: "unlogged-table"}},
	},
	{
		Name: "rule-redirects-write", Severity: Error,
		Why:   "A rewrite rule replaces or adds to a statement before any trigger sees it, so the write may land where no guard is, or not be the write that was asked for.",
		parts: []part{{file: "rule-redirects-write"}},
	},
	{
		Name: "subscription-writes", Severity: Error,
		Why:   "The worker of a subscription applies changes as a replica, and ordinary triggers do not fire for it: what it writes is not checked, and may be older than what is there.",
		parts: []part{{file: "subscription-writes"}},
	},
	{
		Name: "sequence-unsafe", Severity: Error,
		Why: "A fencing token must never be issued twice, and a later one must be greater. That rests on the token sequence.",
		parts: []part{
			{file: "sequence-unsafe"},
			{file: "sequence-unsafe.backwards", reads: readsTokens, skipped: "whether the token sequence was moved backwards is not known: " + needsTokens},
		},
	},
	{
		Name: "token-ahead-of-source", Severity: Error,
		Why:   "An absurd token was claimed. It refuses every holder that comes after, until the source reaches it or the fence is lowered.",
		parts: []part{{file: "token-ahead-of-source", reads: readsTokens, skipped: needsTokens}},
	},
	{
		Name: unfencedTable, Severity: Warning,
		Why:   "A lock holder that was paused past its time limit can still write here, over what its successor has written.",
		parts: []part{{file: "unfenced-table"}},
	},
	{
		Name: "cascade-from-unfenced", Severity: Warning,
		Why:   "The action of the foreign key is a write of the fenced table. Its guard checks that, so a write of the parent without a token fails when it cascades, and the parent itself is not fenced.",
		parts: []part{{file: "cascade-from-unfenced"}},
	},
	{
		Name: "row-fence-with-deletes", Severity: Warning,
		Why:   "The fence of a row is in the row. Once the row is deleted, an old holder can insert it again. A named fence outlives the rows.",
		parts: []part{{file: "row-fence-with-deletes"}},
	},
	{
		Name: "owner-can-bypass", Severity: Info,
		Why:   "A table's owner can switch its guards off, drop them, and call fencing.bypass. What the application may do, its mistakes and whoever gets its password may do.",
		parts: []part{{file: "owner-can-bypass"}},
	},
	{
		Name: unfencedStatement, Severity: Info,
		Why: "A statement that presents no token, in a program that presents none, is refused once the fence enforces.",
	},
	{
		Name: "observing", Severity: Warning,
		Why:   "A guard that observes records what it would refuse, and lets it through.",
		parts: []part{{file: "observing"}},
	},
}
