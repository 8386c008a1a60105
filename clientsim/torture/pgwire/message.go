package pgwire

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// Types of messages (PostgreSQL's documentation, "Message Formats").
const (
	typeBind            = 'B'
	typeCommandComplete = 'C'
	typeParse           = 'P'
	typeQuery           = 'Q'
	typeReadyForQuery   = 'Z'
	typeSync            = 'S'
)

// Codes of the first message of a connection, which has no type.
const (
	codeCancel = 80877102
	codeTLS    = 80877103
	codeGSS    = 80877104
)

// maxMessage is the largest message that the proxy forwards, in bytes. mlsd's own are below 64 MiB.
const maxMessage = 256 << 20

// message is one message with its type and length, as it goes over the wire.
type message []byte

// kind is the type of a message that has one.
func (m message) kind() byte { return m[0] }

// body is what follows the type and the length.
func (m message) body() []byte { return m[5:] }

// readMessage reads a message. header is how many bytes stand before the length.
func readMessage(r *bufio.Reader, header int) (message, error) {
	head, err := r.Peek(header + 4)
	if err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[header:]))
	if size < 4 || size > maxMessage {
		return nil, fmt.Errorf("pgwire: a message of %d bytes", size)
	}
	m := make(message, int64(header)+size)
	_, err = io.ReadFull(r, m)
	return m, err
}

// readTyped reads a message with a type.
func readTyped(r *bufio.Reader) (message, error) { return readMessage(r, 1) }

// readFirst reads the first message of a connection, and its code.
func readFirst(r *bufio.Reader) (message, uint32, error) {
	m, err := readMessage(r, 0)
	if err == nil && len(m) < 8 {
		err = fmt.Errorf("pgwire: a first message of %d bytes", len(m))
	}
	if err != nil {
		return nil, 0, err
	}
	return m, binary.BigEndian.Uint32(m[4:]), nil
}

// endsRequest reports whether the server now answers everything that was sent.
func endsRequest(m message) bool { return m.kind() == typeQuery || m.kind() == typeSync }

// terminate is the message that ends a connection in order.
var terminate = message{'X', 0, 0, 0, 4}

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
