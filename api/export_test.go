package api

import (
	"context"
	"strconv"
	"testing"
	"time"

	"mlsd/api/errorlist"
	"mlsd/events"
)

// Subscription is the interface of the subscriptions that tests provide.
type Subscription = subscription

// Subscribe makes the server's streams use f's subscriptions.
func (s *Server) Subscribe(f func(context.Context, events.Request) (Subscription, bool, error)) {
	s.handlers.streams.subscribe = f
}

// SubscribeChecked is Subscribe with the gate's second question.
func (s *Server) SubscribeChecked(f func(context.Context, events.Request) (Subscription, bool, error)) {
	s.handlers.streams.subscribe = checked(f, s.cfg.Gate)
}

// Guard replaces the server's gate.
func (s *Server) Guard(gate Gate) { s.handlers.gate = gate }

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
	s.handlers.streams.heads = old.heads
}

// The errors that the tests go through.

// EmittedNames are the error names that only some methods answer with.
func EmittedNames() (names []string) {
	for _, e := range errorlist.All {
		if !e.Every {
			names = append(names, e.Name)
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
		var reserved reservation
		if err := s.memory.largeAnswers.reserve(t.Context(), &reserved, strconv.Itoa(i), "", largeAnswersOfCaller); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(reserved.release)
	}
}

// LimitLargeAnswers sets the memory of large answers, in bytes.
func (s *Server) LimitLargeAnswers(all, perCaller int64) {
	s.memory.largeAnswers = newMemoryPool(all, perCaller)
}

// SmallMemoryIsFree reports whether no request holds memory of small bodies or answers.
func (s *Server) SmallMemoryIsFree() bool {
	for _, p := range []*memoryPool{s.memory.tinyBodies, s.memory.smallBodies, s.memory.smallAnswers} {
		if !p.all.TryAcquire(p.size) {
			return false
		}
		p.all.Release(p.size)
	}
	return true
}

// EveryMethod reports whether every method may answer with name.
func EveryMethod(name string) bool { return everyMethod(name) }

func (p *places) all() []*memoryPool { return []*memoryPool{p.small, p.large, p.pages} }

// TakePlaces takes all places for verifications and for large pages, until release.
func (s *Server) TakePlaces(t *testing.T) (release func()) {
	t.Helper()
	var taken []*reservation
	for _, pool := range s.handlers.places.all() {
		for i := range int(pool.size) {
			var r reservation
			if err := pool.reserve(t.Context(), &r, "hostile "+strconv.Itoa(i), "", 1); err != nil {
				t.Fatal(err)
			}
			taken = append(taken, &r)
		}
	}
	return func() {
		for _, r := range taken {
			r.release()
		}
	}
}

// WaitingForPlaces returns how many callers wait for a place while all are taken.
func (s *Server) WaitingForPlaces() (n int) {
	for _, pool := range s.handlers.places.all() {
		pool.mu.Lock()
		n += len(pool.shares) - int(pool.size)
		pool.mu.Unlock()
	}
	return n
}

// HoldDear makes dear requests wait, until release.
func (s *Server) HoldDear() (release func()) {
	a := s.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	free := a.free
	a.free = 0
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.free += free
		a.admit()
	}
}

// DearWaiting returns how many dear requests wait.
func (s *Server) DearWaiting() int {
	s.admission.mu.Lock()
	defer s.admission.mu.Unlock()
	return s.admission.waiting
}

// ChargeNoTime charges dear requests nothing for their time. Call it before the first request.
func (s *Server) ChargeNoTime() {
	now := time.Now()
	s.admission.now = func() time.Time { return now }
}

// DearLate returns how many dear requests are late.
func (s *Server) DearLate() int {
	a := s.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	connections := int(s.cfg.DB.Config().MaxConns)
	return a.free - max(1, connections/admittedShare) - a.slots + max(1, connections-cheapConnections)
}
