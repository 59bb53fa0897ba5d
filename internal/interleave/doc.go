// Package interleave runs the transactions of several lock holders against a real PostgreSQL in every order that their steps
// can take, and checks what came of each against the promises P1 to P3 of the SQL layer.
//
// A [Scenario] names a [Fixture] (tables with the initial rows and fences) and a few sessions, each a list of steps. An order
// is found out as it runs: wherever more than one session can go on, each choice is tried in some run ([Explore] without a
// sample), or a seeded chance decides. A session whose step waits for another session's lock cannot go on. That a step waits
// is read from PostgreSQL's own lock table, never concluded from a delay: a step that was sent has either answered, or its
// backend is seen waiting for a lock that another of the sessions holds. So two runs of one order do the same.
//
// What is checked, and why it raises no false alarm, is said at [Check]. That it raises true ones is shown with the designs
// of [Designs]: guards as people write them by hand, each with its known hole, put in the place of ours. The explorer has to
// find an order that breaks a promise in each of them.
//
// A run is written as a script, one step a line in the order in which they were sent. It reads as an explanation, and
// [ParseScript] and [Replay] run it again.
//
// The package owns neither server nor databases: it is handed databases with the schema fencing in them, and makes
// schemas of its own there. Command explore, below it, and the tests provide them.
package interleave
