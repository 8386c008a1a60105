// Package events publishes each committed event, in one order, to everyone whom the event concerns.
// Only the stream decides who is entitled to an event of a convo: the people whose last membership
// event before the event says that they joined. The roster is read only for people whose membership
// has not changed since.
//
// It may import messages, outbox, migrations and internal. api serves its subscriptions, node runs
// its workers, and features wake it.
package events
