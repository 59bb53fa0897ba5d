// Package fenced writes to PostgreSQL under a fencing token.
//
// A lock with a time limit cannot protect data: its holder may be paused past the limit, wake up, and write over
// its successor. The resource has to check. Each grant of the lock carries a number that only grows, its fencing
// [Token]; each transaction presents it; and guards in the database (the schema "fencing", installed by fencectl)
// refuse a token older than one they have already accepted. The idea is Lamport's and Gray's, the name is from
// Kleppmann, "How to do distributed locking" (2016); Chubby calls it a sequencer, Kafka an epoch.
//
// This package is the Go side of that bargain. It presents the token in the same round trip as BEGIN ([Run]), raises
// a named fence before the first read ([Claim]), bounds a transaction by the time its grant has left so that a
// paused holder cannot block its successor, and turns the guards' refusals into typed errors ([StaleError],
// [UnfencedError], [InvalidTokenError], [UnclaimedError], [UnsupportedError]).
//
// # Which errors mean what
//
//   - [ErrStale]: somebody holds a newer token, or (see [StaleError.OwnWrite]) this very write is already in. Stop; do
//     not retry under the same grant. Acquire the lock again and start over from the first read. [Lost] is the question that a loop
//     asks. When the error is also [ErrSourceBehind], acquiring again does not help: an operator has to look at the token source.
//   - [ErrGrantEnded]: this process noticed by itself that the lock is gone. The same.
//   - [ErrUnclaimed]: the token is newer than the fence. Call [Claim], then run the transaction again.
//   - [ErrUnfenced], [ErrInvalidToken], [ErrUnsupported]: a mistake in the program or its configuration. Retrying does not help.
//   - serialization_failure (40001) and deadlock_detected (40P01): safe to run again under the same grant; [Run] does so
//     when [RunOptions.Retries] says so.
//   - [ErrOutcomeUnknown]: the connection broke while COMMIT was under way. The transaction may or may not have
//     committed. Look before writing again; under a strict row fence a second attempt fails with ErrStale and
//     [StaleError.OwnWrite] true when the first one was committed.
//
// # Programs on database/sql
//
// [RunSQL], [ClaimSQL] and [PresentSQL] are the same for database/sql, with pgx's stdlib driver or lib/pq. [Connector] wraps a driver
// so that refusals are typed errors wherever database/sql returns them.
//
// # What it leaves to others
//
// Locks and tokens come from package tokensrc and its sub-packages; this package imports none of them, and no client of
// etcd, Redis or ZooKeeper is compiled into a program that imports only fenced. OpenTelemetry metrics are in package
// fenced/fencedotel, a test kit in package fencedtest.
//
// Nothing here is a security boundary: an SQL client that means harm can present any token it likes. And nothing here
// fences what happens outside the database.
package fenced
