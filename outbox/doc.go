// Package outbox is what a transaction leaves to be done after its COMMIT: rows of the table
// outbox, one for each event that it causes (outbox.go), and jobs that call devices (calls.go). So
// there is no change without its event and its call, and no event or call without its change.
//
// Package events moves the rows into the stream, and features/push makes the calls. It may import
// only internal. messages, keypackages, welcome and convos call it.
package outbox
