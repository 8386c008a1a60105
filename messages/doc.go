// Package messages keeps the ordered log of a convo: what members sent, and the commits that
// advanced the epoch. Entries have the seqs 1, 2, 3 … without a gap or a repeat, in the order in
// which they are committed.
//
// It owns the table messages, and the columns last_seq and last_message_at of convos, which it
// writes only under the lock of the convo's row. It may import idem, outbox, mls and people. convos
// appends commits, events and welcome read the log, and api calls Send.
package messages
