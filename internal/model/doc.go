// Package model compares the SQL layer with a model of it: random statements of one session, valid and invalid, in transactions with
// savepoints, go to PostgreSQL and to a few pages of Go that say what the documentation's tables say, and after each of them the
// SQLSTATE, every row with its fence, and every named fence have to be the same.
//
// The model has no memory of what it has checked, no triggers and no locks; all it does is copy its whole state at each
// savepoint. So whatever the SQL layer remembers within a transaction, for speed, has to make no difference.
//
// All of it is test code. A sequence that tells the two apart is shortened and printed as a script for psql.
package model
