package api

import (
	"context"
	"strconv"
	"testing"
	"time"

	"mlsd/api/errorlist"
	"mlsd/events"
	"mlsd/internal/limit"
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
func (s *Server) Guard(gate Gate) { s.handlers.Gate = gate }

// Pace is the time limits of clients in a test. A zero field keeps the default.
type Pace struct{ Write, Close, Ping, Pong, KeepAlive time.Duration }

// Hurry sets the pace, before the first stream.
func (s *Server) Hurry(p Pace) {
	old := s.handlers.streams
	next := old.pace
	for to, from := range map[*time.Duration]time.Duration{&next.write: p.Write, &next.close: p.Close, &next.ping: p.Ping,
		&next.pong: p.Pong, &next.keepAlive: p.KeepAlive} {
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
func Refusal(err error) (status int, name, message string, ok bool) {
	f, ok := refusal(err)
	return f.status, f.name, f.message, ok
}

// Limited is the error of a rate limit.
func Limited(after time.Duration) error { return limited{after} }

// UntestedRows are the rows of errorTable whose error is the client's and that answer none of errs.
func UntestedRows(errs []error) (rows []string) {
	tested := map[*errorRow]bool{}
	for _, err := range errs {
		_, row, _ := answerTo(err)
		tested[row] = true
	}
	for i := range errorTable {
		if row := &errorTable[i]; StatusOf(row.name) < 500 && !tested[row] {
			rows = append(rows, strconv.Itoa(i)+", "+row.name)
		}
	}
	return rows
}

// StatusOf is the status of a named error.
func StatusOf(name string) int { return named(name, "").status }

// FillMemory reserves all memory that answers over maxSmall and bodies over maxTiny can have, for
// other callers.
func (s *Server) FillMemory(t *testing.T) {
	t.Helper()
	fill := func(pool *limit.Memory, most int64) {
		for i := 0; ; i++ {
			reserved, of := &limit.Reservation{}, limit.Client{Key: strconv.Itoa(i)}
			if !pool.TryReserve(reserved, of, most, 8*mib) {
				return
			}
			t.Cleanup(reserved.Release)
		}
	}
	fill(s.memory.answers, maxSmall+1)
	fill(s.memory.bodies, maxTiny+1)
}

// LimitLargeAnswers sets the memory of large answers, in bytes.
func (s *Server) LimitLargeAnswers(all, perCaller int64) {
	s.memory.answers = limit.NewMemory(
		limit.Bound{Size: all + mib, Share: perCaller + mib}, limit.Bound{Above: maxSmall, Size: all, Share: perCaller},
	)
}

// LimitBodies sets the memory of bodies, in bytes. No part of it is for small ones.
func (s *Server) LimitBodies(all, perCaller int64) {
	s.memory.bodies = limit.NewMemory(limit.Bound{Size: all, Share: perCaller})
}

// MemoryIsFree reports whether no request holds memory of bodies or answers.
func (s *Server) MemoryIsFree() bool { return s.memory.bodies.Used()+s.memory.answers.Used() == 0 }

// EveryMethod reports whether every method may answer with name.
func EveryMethod(name string) bool { return everyMethod(name) }

func (p *places) all() []*limit.Queue { return []*limit.Queue{p.small, p.large, p.pages} }

// TakePlaces takes all places for verifications and for large pages, until release.
func (s *Server) TakePlaces(t *testing.T) (release func()) {
	t.Helper()
	var releases []func()
	for _, queue := range s.handlers.places.all() {
		for i := range int(queue.Size) {
			hostile := "hostile " + strconv.Itoa(i)
			if err := queue.Acquire(t.Context(), hostile, 1); err != nil {
				t.Fatal(err)
			}
			releases = append(releases, func() { queue.Release(hostile, 1) })
		}
	}
	return func() {
		for _, release := range releases {
			release()
		}
	}
}

// WaitingForPlaces returns how many requests wait for a place.
func (s *Server) WaitingForPlaces() (n int) {
	for _, queue := range s.handlers.places.all() {
		_, waiting := queue.Used()
		n += waiting
	}
	return n
}

// HoldExpensive makes expensive requests wait, until release.
func (s *Server) HoldExpensive() (release func()) {
	early := &s.handlers.admission.early
	early.TryAcquire("hold", early.Size)
	return func() { early.Release("hold", early.Size) }
}

// ExpensiveWaiting returns how many expensive requests wait.
func (s *Server) ExpensiveWaiting() int {
	_, waiting := s.handlers.admission.early.Used()
	return waiting
}

// ChargeNoTime charges expensive requests nothing for their time. Call it before the first request.
func (s *Server) ChargeNoTime() {
	now := time.Now()
	s.handlers.admission.now = func() time.Time { return now }
}

// ExpensiveLate returns how many expensive requests are late.
func (s *Server) ExpensiveLate() int {
	running, _ := s.handlers.admission.running.Used()
	early, waiting := s.handlers.admission.early.Used()
	return int(running-early) - waiting
}

// ReceiptsOfUnit is how many receipts cost a unit.
const ReceiptsOfUnit = receiptsOfUnit
