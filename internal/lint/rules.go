package lint

import (
	"slices"

	"github.com/fencectl/fencectl/internal/audit"
)

// A Rule is one kind of finding.
type Rule struct {
	Name     string         // stable
	Severity audit.Severity // of its findings, where the project does not say otherwise
	Why      string         // why it matters
}

// Docs is the address of the rule's page.
func (r Rule) Docs() string { return docs + r.Name + ".md" }

const docs = "https://github.com/fencectl/fencectl/blob/main/docs/lint/"

// The names of the rules.
const (
	SyntaxError       = "syntax-error"
	UnknownTable      = "unknown-table"
	UnfencedWrite     = "unfenced-write"
	TruncateRefused   = "truncate-refused"
	TokenPredicate    = "token-predicate"
	TokenSource       = "token-source"
	ClaimOrder        = "claim-order"
	SessionToken      = "session-token"
	BypassUsed        = "bypass-used"
	GeneratedBypassed = "generated-bypassed"
	GuardRemoved      = "guard-removed"
	GuardShadowed     = "guard-shadowed"
	GuardNotCopied    = "guard-not-copied"
	FenceUnlogged     = "fence-unlogged"
	FencingInternals  = "fencing-internals"
	ExemptionInvalid  = "exemption-invalid"
)

// Rules lists the rules in the order in which they are documented.
func Rules() []Rule { return slices.Clone(rules) }

func ruleOrder(name string) int {
	return slices.IndexFunc(rules, func(r Rule) bool { return r.Name == name })
}

var rules = []Rule{
	{
		Name: UnfencedWrite, Severity: audit.Error,
		Why: "A write that presents no token is refused by the guard, or gets through where the guard only observes: then a holder that has lost its lock writes over its successor.",
	},
	{
		Name: TruncateRefused, Severity: audit.Error,
		Why: "TRUNCATE erases the fences that are in the rows, and fires no row trigger that could check them, so the guard always refuses it.",
	},
	{
		Name: TokenPredicate, Severity: audit.Error,
		Why: "A comparison in the wrong direction, or with the wrong column, lets the older token through and keeps the newer one out.",
	},
	{
		Name: TokenSource, Severity: audit.Error,
		Why: "Only the number that came with the lock says who is the newer holder. One from the row itself, from a clock, a sequence or the source text is newer than nothing, or than everything.",
	},
	{
		Name: ClaimOrder, Severity: audit.Error,
		Why: "What was read before the claim may be older than what an earlier holder still commits: a lost update although every check passes. And a claim in a writing transaction waits for older writers while it holds locks that they may want.",
	},
	{
		Name: SessionToken, Severity: audit.Error,
		Why: "A token that outlives its transaction is presented by whoever gets the connection, or the role, next: a pooled connection writes under a token that is not its holder's.",
	},
	{
		Name: GeneratedBypassed, Severity: audit.Warning,
		Why: "The generated methods carry the token's predicate, present the token and tell stale from not found. A statement beside them does so only for as long as somebody remembers.",
	},
	{
		Name: BypassUsed, Severity: audit.Warning,
		Why: "fencing.bypass lets every write of its transaction through, whatever the token. It is for operators and migrations, and only the table's owner may use it.",
	},
	{
		Name: GuardRemoved, Severity: audit.Error,
		Why: "Without its guards the table takes every write, with an old token or with none, and nothing else shows it.",
	},
	{
		Name: GuardShadowed, Severity: audit.Error,
		Why: "A trigger that fires after the guard can change the row after it has been checked, and a rule replaces the statement before any trigger sees it.",
	},
	{
		Name: GuardNotCopied, Severity: audit.Warning,
		Why: "PostgreSQL does not copy triggers to tables that are made like another, inherit from it or are detached from it, and statement triggers not even to partitions.",
	},
	{
		Name: FenceUnlogged, Severity: audit.Error,
		Why: "After a crash the server empties unlogged tables. A fence that is gone accepts every token, however old.",
	},
	{
		Name: FencingInternals, Severity: audit.Error,
		Why: "The tables of the schema fencing are what every fence stands on. A fence that is lowered or deleted past its functions accepts tokens that were refused before.",
	},
	{
		Name: UnknownTable, Severity: audit.Error,
		Why: "A statement on a table that does not exist fails when it runs, and whether it would have had to present a token is not known.",
	},
	{
		Name: SyntaxError, Severity: audit.Error,
		Why: "What PostgreSQL cannot parse cannot be linted either: whatever the statement does, nobody has looked at it.",
	},
	{
		Name: ExemptionInvalid, Severity: audit.Warning,
		Why: "An exemption without a reason, of a rule that does not exist, or of nothing, exempts nothing today and perhaps something else tomorrow.",
	},
}
