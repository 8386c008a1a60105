package clientsim

import (
	"fmt"
	"sync/atomic"
)

// ViolationKind sorts broken promises for the totals.
type ViolationKind string

const (
	// Lost: something that was acknowledged is not there.
	Lost ViolationKind = "lost"
	// Duplicated: something is there twice.
	Duplicated ViolationKind = "duplicated"
	// Broken: any other promise.
	Broken ViolationKind = "violated"
)

// Violation is one broken promise.
type Violation struct {
	Kind  ViolationKind `json:"kind"`
	Convo string        `json:"convo,omitempty"`
	Who   string        `json:"who,omitempty"` // whose view of it
	What  string        `json:"what"`
}

func (v Violation) String() string {
	s := fmt.Sprintf("%s: %s", v.Kind, v.What)
	if v.Who != "" {
		s += " (seen by " + v.Who + ")"
	}
	if v.Convo != "" {
		s += " in convo " + v.Convo
	}
	return s
}

// Stats counts what happened on the wire and on the phones.
type Stats struct {
	Sent      atomic.Int64 // application messages acknowledged
	Delivered atomic.Int64 // application messages decrypted by a recipient
	Retried   atomic.Int64 // attempts beyond a call's first
	Replays   atomic.Int64 // answers that were replays
}
