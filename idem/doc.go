// Package idem makes a write safe to repeat. A request with an idempotency key leaves a record in
// the same transaction as its effect, so record and effect exist together or not at all. A
// repetition finds the record and gets the first answer, byte for byte (docs/IDEMPOTENCY.md).
//
// Do is for a write whose effects are all in PostgreSQL. Run is for work outside the database, such
// as a call of a push service: it writes the record before the work, and a lease protects it
// (lease.go). It may import only internal. api calls Do, and features call Run.
package idem
