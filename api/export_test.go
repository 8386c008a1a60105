package api

import (
	"context"
	"strconv"
	"testing"
	"time"

	"mlsd/events"
)

// Subscription is what tests make up.
type Subscription = subscription

// Subscribe has the server's streams tell what f says.
func (s *Server) Subscribe(f func(context.Context, events.Request) (Subscription, bool, error)) {
	s.handlers.streams.subscribe = f
}

// Pace is how fast clients have to be in a test; what is 0 stays as it is.
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

// What the tests of error conventions walk through.

// EmittedNames are the error names that domain errors and broken rules are turned into.
func EmittedNames() []string {
	var names []string
	for _, s := range sentinels {
		names = append(names, s.name)
	}
	for _, v := range violations {
		names = append(names, v.name)
	}
	for name := range statusOf {
		names = append(names, name)
	}
	return names
}

// RenamedRules are the names that broken rules get, with the method that has them.
func RenamedRules() (names [][2]string) {
	for _, v := range violations {
		names = append(names, [2]string{v.nsid, v.name})
	}
	return names
}

// Refusal is the answer that a domain error is turned into.
func Refusal(err error) (status int, name string, ok bool) {
	f, ok := refusal(err)
	return f.status, f.name, ok
}

// Generic reports whether every method may answer with name.
func Generic(name string) bool { return generic(name) }

// StatusOf is the status of a named error.
func StatusOf(name string) int { return named(name, "").status }

// FillLargeAnswers has other callers hold all the memory that there is for large answers.
func (s *Server) FillLargeAnswers(t *testing.T) {
	t.Helper()
	for i := range int(largeAnswers / largeAnswersOfCaller) {
		held, err := s.largeAnswers.take(t.Context(), strconv.Itoa(i), largeAnswersOfCaller)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(held.release)
	}
}
