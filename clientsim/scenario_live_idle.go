package clientsim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// LiveIdle has many listen on one server whom nothing concerns, and measures what they cost it; and then how long a message takes to
// the last of those whom it concerns.
func LiveIdle(ctx context.Context, w *World) error {
	return w.withFleet(ctx, func(f *fleet) error {
		b := &broadcast{w: w, f: f, chronicle: NewChronicle(), audience: newAudience(ctx, w.rng.Uint64())}
		err := b.idle(ctx, orDefault(w.Idle, fewIdle), orDefault(w.Audience, smallAudience))
		return errors.Join(err, b.audience.stop())
	})
}

// How many there are if nobody says, and how they connect.
const (
	fewIdle       = 200
	smallAudience = 100
	perAccount    = 10  // connections
	atATime       = 100 // connections that are opened at once
	atCreation    = 100 // members that createConvo takes
	atOnce        = 50  // that addMembers takes
	volleys       = 10  // messages to the audience
)

func (b *broadcast) idle(ctx context.Context, idle, listening int) error {
	node := b.f.nodes[0]
	author, err := b.w.cheapAccount()
	if err != nil {
		return err
	}
	b.w.tell("making the audience's convo")
	r, err := b.hall(ctx, author, (listening+perAccount-1)/perAccount)
	if err != nil {
		return err
	}
	if err := b.send(ctx, b.w.rng, r); err != nil { // the server has done this once
		return err
	}
	before, err := node.memory(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := b.admitIdle(ctx, idle); err != nil {
		return err
	}
	took := time.Since(start)
	sleep(ctx, time.Second)
	after, err := node.memory(ctx)
	if err != nil {
		return err
	}
	each := func(a, b int64) string { return fmt.Sprintf("%.1f KiB", float64(a-b)/1024/float64(idle)) }
	b.w.Note("%d idle subscribers, opened in %s: %s each resident (%d MiB in all), %s of heap, %s of stacks", idle, took.Round(time.Millisecond),
		each(after.resident, before.resident), after.resident>>20, each(after.heap, before.heap), each(after.stacks, before.stacks))
	if err := b.volley(ctx, r, listening); err != nil {
		return err
	}
	if err := b.w.caughtUp(ctx, b.audience, b.chronicle, patience); err != nil {
		return err
	}
	b.w.Stats.Sent.Add(b.sends.Load())
	if why := b.audience.tally.Reasons(); why != "" {
		b.w.Note("streams ended or were not opened: %s", why)
	}
	return nil
}

// hall makes a convo with so many members besides the author.
func (b *broadcast) hall(ctx context.Context, author *Account, members int) (*room, error) {
	rng := b.w.rng
	r := &room{group: noise(16), writers: []*Account{author}}
	var late []*person
	for i := range members {
		p := &person{}
		var err error
		if i < atCreation {
			p.Account, err = b.w.cheapAccount()
		} else {
			p, err = b.person(ctx)
			late = append(late, p)
		}
		if err != nil {
			return nil, err
		}
		r.in = append(r.in, p)
	}
	var founders []*Account
	for _, p := range r.in[:min(len(r.in), atCreation)] {
		founders = append(founders, p.Account)
	}
	var err error
	if r.id, err = b.create(ctx, rng, author, createCall(r.group, b.w.suite, didsOf(founders), &Staged{}, newKey())); err != nil {
		return nil, err
	}
	b.chronicle.Begun(r.id, author.DID, append(didsOf([]*Account{author}), didsOf(founders)...)...)
	for some := range slices.Chunk(late, atOnce) {
		if err := b.admit(ctx, rng, r, some...); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// openStreams has subscribers connect to the first node, not too many at a time.
func (b *broadcast) openStreams(subs []*Subscriber) error {
	for some := range slices.Chunk(subs, atATime) {
		if err := b.audience.listen(some...); err != nil {
			return err
		}
		b.w.tell(fmt.Sprintf("%d connections", b.audience.tally.Connected.Load()))
	}
	return nil
}

// admitIdle opens so many streams of people who are in no convo.
func (b *broadcast) admitIdle(ctx context.Context, n int) error {
	var subs []*Subscriber
	var account *Account
	for i := range n {
		if i%perAccount == 0 {
			var err error
			if account, err = b.w.cheapAccount(); err != nil {
				return err
			}
		}
		subs = append(subs, b.stream(fmt.Sprintf("idle-%d", i), account))
	}
	return b.openStreams(subs)
}

func (b *broadcast) stream(name string, account *Account, devices ...string) *Subscriber {
	s := b.audience.add(name, account, b.f.clients[:1], devices...)
	s.By = byToken
	return s
}

// volley sends messages to the audience, one after the other, and waits for each until the last has it.
func (b *broadcast) volley(ctx context.Context, r *room, listening int) error {
	var heard atomic.Int64
	var last atomic.Int64 // ns, of the latest arrival
	var lag lag
	var subs []*Subscriber
	for i := range listening {
		p := r.in[i/perAccount]
		s := b.stream(fmt.Sprintf("listener-%d", i), p.Account, p.device)
		s.From = new(int64)
		s.Heard = func(h *happening, at time.Time, live bool) {
			if h.kind != toldMessage || !live {
				return
			}
			lag.add(at.Sub(h.at))
			for most := last.Load(); at.UnixNano() > most && !last.CompareAndSwap(most, at.UnixNano()); most = last.Load() {
			}
			heard.Add(1)
		}
		subs = append(subs, s)
	}
	if err := b.openStreams(subs); err != nil {
		return err
	}
	caughtUp := func(s *Subscriber) bool { _, entries := s.Vigil.Told(); return entries > 0 }
	err := until(ctx, patience, func() (bool, error) { // the first message was before any of them was there
		return !slices.ContainsFunc(subs, func(s *Subscriber) bool { return !caughtUp(s) }), b.audience.err()
	})
	if err != nil {
		return err
	}
	var lasts, answers []time.Duration
	for i := range volleys {
		start := time.Now()
		if err := b.send(ctx, rand.New(rand.NewPCG(b.w.Seed, uint64(i))), r); err != nil {
			return err
		}
		answers = append(answers, time.Since(start))
		err = until(ctx, patience, func() (bool, error) { return heard.Load() >= int64((i+1)*listening), b.audience.err() })
		if err != nil {
			return fmt.Errorf("%d of %d heard message %d: %w", heard.Load()-int64(i*listening), listening, i, err)
		}
		lasts = append(lasts, time.Unix(0, last.Load()).Sub(start))
	}
	slices.Sort(lasts)
	slices.Sort(answers)
	b.w.Note("a message to %d subscribers of %d members: answered after %s, and the last had it after %s (median of %d messages; the slowest: %s)",
		listening, len(r.in), answers[volleys/2].Round(time.Microsecond), lasts[volleys/2].Round(time.Microsecond), volleys,
		lasts[volleys-1].Round(time.Microsecond))
	b.w.Note("createdAt to arrival: %s", &lag)
	return nil
}
