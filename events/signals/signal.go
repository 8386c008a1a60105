// Package signals passes signals on between connected members: who types, and whose cursor has moved.
//
// A signal travels to all nodes in a NOTIFY, on a connection of its own. Each node offers it to the
// live subscriptions of its hub. A NOTIFY takes a lock of the whole database when its transaction
// commits, so it must never be in the transaction of a message. No content of a signal is written to
// a table, a WAL or a log. Nothing is repeated: a signal over a bound is dropped, and counted.
package signals

import (
	"encoding/json"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// Signal goes to members who are connected, and is not kept. It is either a ciphertext of its
// sender, or a set of moved cursors. A Signal has no place in the stream, moves no client's cursor
// and is never repeated. Nodes send it to each other as JSON.
type Signal struct {
	ConvoID uuid.UUID  `json:"convo"`
	Sender  syntax.DID `json:"sender,omitempty"`
	Payload []byte     `json:"payload,omitempty"`
	// Hidden are members who do not get the ciphertext, because they have blocked its sender.
	Hidden []syntax.DID `json:"hidden,omitempty"`
	Moves  []Move       `json:"moves,omitempty"`
	// If Nobody is true, no other member may get the ciphertext. The limits count such a signal
	// like any other before it is dropped, so that the answers do not reveal the blocks to its
	// sender.
	Nobody bool `json:"-"`
}

// Move is a cursor that has moved.
type Move struct {
	DID       syntax.DID `json:"did"`
	Read      int64      `json:"read"`
	Delivered int64      `json:"delivered"`
}

// Reasons why a signal is dropped, or a subscription does not get it.
const (
	DroppedBusy    = "busy"    // the node is busy, and messages come first
	DroppedRate    = "rate"    // the node accepts no more now, or no more from the caller
	DroppedConvo   = "convo"   // the node accepts no more for the convo
	DroppedOffline = "offline" // the node cannot reach the others
	DroppedLong    = "long"    // the signal does not fit into a NOTIFY
	DroppedBehind  = "behind"  // a subscription's buffer is more than half full
	DroppedFailed  = "failed"  // the node could not look up who sees a cursor
)

// DropReasons returns all reasons.
func DropReasons() []string {
	return []string{DroppedBusy, DroppedRate, DroppedConvo, DroppedOffline, DroppedLong, DroppedBehind, DroppedFailed}
}

// movers are the people whose cursors have moved.
func (s *Signal) movers() []syntax.DID {
	dids := make([]syntax.DID, len(s.Moves))
	for i, m := range s.Moves {
		dids[i] = m.DID
	}
	return dids
}

// noticeBytes is the longest payload of a NOTIFY: PostgreSQL takes less than 8,000 bytes.
const noticeBytes = 7900

// pack puts signals, in their order, into payloads of NOTIFY. It fills each payload before it
// begins the next one. A payload is a JSON array. A signal that is too long for a payload is left
// out and counted.
func pack(signals []*Signal) (payloads []string, tooLong int) {
	var open []byte
	for _, s := range signals {
		one, err := json.Marshal(s)
		if err != nil || len(one)+2 > noticeBytes {
			tooLong++
			continue
		}
		if len(open) > 0 && len(open)+len(one)+2 > noticeBytes {
			payloads, open = append(payloads, string(append(open, ']'))), nil
		}
		open = append(open, "[,"[min(len(open), 1)])
		open = append(open, one...)
	}
	if len(open) > 0 {
		payloads = append(payloads, string(append(open, ']')))
	}
	return payloads, tooLong
}

// unpack reads a payload of NOTIFY.
func unpack(payload string) (signals []*Signal, err error) {
	if err := json.Unmarshal([]byte(payload), &signals); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(signals, func(s *Signal) bool { return s == nil }), nil
}
