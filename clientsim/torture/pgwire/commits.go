package pgwire

import (
	"bytes"
	"regexp"
	"sync"
)

// commits finds the messages that commit: those that execute COMMIT, by text or by a prepared
// statement, and those that end a request which has written without a BEGIN (PostgreSQL's
// documentation, "Pipelining").
type commits struct {
	prepared map[string]statement // by name; of the client's pump only
	request  statement            // what the client's request has done so far; of its pump only

	mu      sync.Mutex // guards what follows
	open    bool       // the last answer ended within a transaction
	pending []bool     // for each request without an answer: does its end commit?
}

// statement is what a statement does.
type statement struct{ writes, begins, commits bool }

// writes finds statements that change rows.
var writes = regexp.MustCompile(`\b(INSERT|UPDATE|DELETE)\b`)

func parse(text []byte) statement {
	return statement{
		writes:  writes.Match(text),
		begins:  bytes.EqualFold(text, []byte("begin")),
		commits: bytes.EqualFold(text, []byte("commit")),
	}
}

// executed returns what the client's message executes.
func (c *commits) executed(m message) statement {
	switch m.kind() {
	case typeQuery:
		text, _, _ := bytes.Cut(m.body(), []byte{0})
		return parse(text)
	case typeParse:
		name, rest, _ := bytes.Cut(m.body(), []byte{0})
		text, _, _ := bytes.Cut(rest, []byte{0})
		c.prepared[string(name)] = parse(text)
	case typeBind:
		_, rest, _ := bytes.Cut(m.body(), []byte{0}) // the portal
		name, _, _ := bytes.Cut(rest, []byte{0})
		return c.prepared[string(name)]
	}
	return statement{}
}

// clientPoints returns the points at which the client's message stands.
func (c *commits) clientPoints(m message) []Point {
	now := c.executed(m)
	c.request.writes = c.request.writes || now.writes
	c.request.begins = c.request.begins || now.begins
	if commits := c.ends(m); now.commits || commits {
		return []Point{Commit, Request}
	}
	return []Point{Request}
}

// ends notes the end of a request, and reports whether it commits.
func (c *commits) ends(m message) bool {
	if !endsRequest(m) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	commits := c.request.writes && !c.request.begins && !c.open
	c.pending = append(c.pending, commits)
	c.request = statement{}
	return commits
}

// serverPoints returns the points at which the server's message stands.
func (c *commits) serverPoints(m message) []Point {
	switch {
	case m.kind() == typeReadyForQuery && c.answered(m):
		return []Point{Committed, Ready, Answer}
	case m.kind() == typeReadyForQuery:
		return []Point{Ready, Answer}
	case m.kind() == typeCommandComplete && bytes.Equal(m.body(), []byte("COMMIT\x00")):
		return []Point{Committed, Answer}
	}
	return []Point{Answer}
}

// answered notes that a request was answered, and reports whether its end commits. The first
// ReadyForQuery of a connection answers no request.
func (c *commits) answered(ready message) (commits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = !bytes.Equal(ready.body(), []byte("I"))
	if len(c.pending) > 0 {
		commits, c.pending = c.pending[0], c.pending[1:]
	}
	return commits
}
