package api

import (
	"context"
	"strconv"
	"testing"
	"time"

	"mlsd/events"
)

// Subscription is the interface of the subscriptions that tests provide.
type Subscription = subscription

// Subscribe makes the server's streams use f's subscriptions.
func (s *Server) Subscribe(f func(context.Context, events.Request) (Subscription, bool, error)) {
	s.handlers.streams.subscribe = f
}

// Pace is the time limits of clients in a test. A zero field keeps the default.
type Pace struct{ Write, Close, Ping, Pong, KeepAlive time.Duration }

// Hurry sets the pace, before the first stream.
func (s *Server) Hurry(p Pace) {
	old := s.handlers.streams
	next := old.pace
	for to, from := range map[*time.Duration]time.Duration{&next.write: p.Write, &next.close: p.Close, &next.ping: p.Ping, &next.pong: p.Pong, &next.keepAlive: p.KeepAlive} {
		if from != 0 {
			*to = from
		}
	}
	next.perChunk = next.write / 10
	s.handlers.streams = newStreams(old.subscribe, next, old.metrics, old.log)
}

// The errors that the tests go through.

// EmittedNames are the error names that only some methods answer with.
func EmittedNames() (names []string) {
	for _, row := range errorTable {
		if !row.every {
			names = append(names, row.name)
		}
	}
	return names
}

// RenamedRules are the names that broken rules get, with the method that has them.
func RenamedRules() (names [][2]string) {
	for nsid, policy := range methods {
		for _, v := range policy.violations {
			names = append(names, [2]string{nsid, v.name})
		}
	}
	return names
}

// Refusal is the answer to a domain error.
func Refusal(err error) (status int, name string, ok bool) {
	f, ok := refusal(err)
	return f.status, f.name, ok
}

// StatusOf is the status of a named error.
func StatusOf(name string) int { return named(name, "").status }

// FillLargeAnswers reserves all memory of large answers, for other callers.
func (s *Server) FillLargeAnswers(t *testing.T) {
	t.Helper()
	for i := range int(largeAnswers / largeAnswersOfCaller) {
		reserved, err := s.memory.largeAnswers.reserve(t.Context(), strconv.Itoa(i), largeAnswersOfCaller)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(reserved.release)
	}
}

// EveryMethod reports whether every method may answer with name.
func EveryMethod(name string) bool { return everyMethod(name) }
