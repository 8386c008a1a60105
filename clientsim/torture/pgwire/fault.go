package pgwire

import (
	"fmt"
	"time"
)

// Point is where in the protocol a fault happens.
type Point string

const (
	// Request: any message of the client.
	Request Point = "request"
	// Commit: the client's message that executes COMMIT, or commits without one.
	Commit Point = "commit"
	// Answer: any message of the server.
	Answer Point = "answer"
	// Committed: the server's CommandComplete of COMMIT, or its ReadyForQuery after a transaction
	// without COMMIT. The transaction is committed by then.
	Committed Point = "committed"
	// Ready: the server's ReadyForQuery.
	Ready Point = "ready"
)

// Points are all points.
func Points() []Point { return []Point{Request, Commit, Answer, Committed, Ready} }

// fromClient reports whether the message at the point comes from the client.
func (p Point) fromClient() bool { return p == Request || p == Commit }

// Action is what happens at a point.
type Action string

const (
	// CutBefore ends the connection instead of forwarding the message.
	CutBefore Action = "cut before"
	// CutInside ends the connection when half of the message was forwarded.
	CutInside Action = "cut inside"
	// CutAfter ends the connection when the message was forwarded.
	CutAfter Action = "cut after"
	// Delay forwards the message late. The other direction goes on.
	Delay Action = "delay"
	// Freeze holds both directions of the connection for a while. Then they go on.
	Freeze Action = "freeze"
	// HalfOpen drops the message and everything behind it. The other direction goes on, until the
	// connection ends.
	HalfOpen Action = "half-open"
	// Late ends the client's connection, and delivers the message and the rest of its request to the
	// server later. Nobody gets the answer. It is for the client's points only.
	Late Action = "late"
)

// Actions are all actions.
func Actions() []Action {
	return []Action{CutBefore, CutInside, CutAfter, Delay, Freeze, HalfOpen, Late}
}

// Fault is one fault of one connection.
type Fault struct {
	Point  Point
	Action Action
	For    time.Duration // of Delay, Freeze, HalfOpen and Late
}

// Name names the fault without its duration.
func (f Fault) Name() string { return fmt.Sprintf("%s %s", f.Action, f.Point) }

// Valid reports whether the action can happen at the point.
func (f Fault) Valid() bool { return f.Action != Late || f.Point.fromClient() }
