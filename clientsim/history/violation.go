package history

import (
	"fmt"
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
	Who   string        `json:"who,omitempty"` // who saw it
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
