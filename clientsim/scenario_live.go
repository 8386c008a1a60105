package clientsim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Live has many write to many who listen, on two servers with one database: connections are dropped, readers are slow, people come
// and go, the server that puts the events in order is killed, twice, and the database is restarted. Everybody is told everything
// that concerns them, once, in order, and nothing else.
func Live(ctx context.Context, w *World) error {
	return w.withFleet(ctx, func(f *fleet) error {
		b := &broadcast{w: w, f: f, chronicle: NewChronicle(), audience: newAudience(ctx, w.rng.Uint64())}
		err := b.play(ctx)
		return errors.Join(err, b.audience.stop())
	})
}

// How large it is if nobody says.
const (
	liveWriters     = 4
	liveConvos      = 20
	liveSubscribers = 12
	liveFor         = 5 * time.Second
)

// broadcast is the story of it.
type broadcast struct {
	w         *World
	f         *fleet
	chronicle *Chronicle
	audience  *audience
	writers   []*Account
	people    []*person

	mu    sync.RWMutex // guards rooms
	rooms []*room

	sends, changes atomic.Int64
	catchUps       atomic.Int64 // events that were told late, after a connection was opened anew
	lag            lag
	// done is when a fault had happened, in ns, until an event that is younger has been told; began is when it was begun.
	began, done atomic.Int64
	after       chan time.Duration
}

// person is somebody who listens.
type person struct {
	*Account
	device string
	ref    []byte // of its last-resort KeyPackage
}

// room is a convo, in which two write at once and some listen.
type room struct {
	// mu is held for a change of the roster, and by every writer for reading: so it is known who is told of a message.
	mu      sync.RWMutex
	id      string
	group   []byte
	epoch   uint64
	writers []*Account // the first is the creator
	in, out []*person
}

func (b *broadcast) play(ctx context.Context) error {
	w := b.w
	length := w.For
	if length <= 0 {
		length = liveFor
	}
	if err := b.cast(ctx, orDefault(w.Writers, liveWriters), orDefault(w.Subscribers, liveSubscribers), length); err != nil {
		return err
	}
	w.tell("making convos")
	if err := b.furnish(ctx, orDefault(w.Convos, liveConvos)); err != nil {
		return err
	}
	start := time.Now()
	writing, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, 3)
	all.Go(func() { errs[0] = b.write(ctx, writing) })
	if !w.Calm {
		all.Go(func() { errs[1] = b.stir(ctx, writing, length) })
		all.Go(func() { errs[2] = b.harm(ctx, writing, length) })
	}
	for writing.Err() == nil {
		sleep(writing, time.Second)
		told, _ := b.told()
		w.tell(fmt.Sprintf("%s: %d sent, %d told", time.Since(start).Round(time.Second), b.sends.Load(), told))
	}
	sent := b.sends.Load()
	took := time.Since(start)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	w.tell("waiting until everybody has been told everything")
	waiting := time.Now()
	if err := w.caughtUp(ctx, b.audience, b.chronicle, patience); err != nil {
		return err
	}
	b.sum(sent, took, time.Since(waiting))
	return nil
}

func orDefault(n, usual int) int {
	if n > 0 {
		return n
	}
	return usual
}

// sum writes down what was measured.
func (b *broadcast) sum(sent int64, took, waited time.Duration) {
	w, t := b.w, &b.audience.tally
	events, entries := b.told()
	w.Stats.Sent.Add(b.sends.Load())
	w.Note("%d messages in %s, %.0f a second, by %d writers to %d convos; %d changes of rosters and epochs", sent, took.Round(time.Millisecond),
		float64(sent)/took.Seconds(), len(b.writers), len(b.rooms), b.changes.Load())
	w.Note("%d events told to %d subscribers, %d of them log entries, %d of them late after a reconnect; the last %s after the last message",
		events, len(b.audience.all), entries, b.catchUps.Load(), max(waited-lull, 0).Round(time.Millisecond))
	w.Note("%d connections: %d dropped, %d ended with 1012, %d with ConsumerTooSlow, %d otherwise, %d not opened",
		t.Connected.Load(), t.Dropped.Load(), t.Restarted.Load(), t.Slow.Load(), t.Broke.Load(), t.Failed.Load())
	if why := t.Reasons(); why != "" {
		w.Note("why: %s", why)
	}
	w.Note("createdAt to arrival on an open connection: %s", &b.lag)
}

func (b *broadcast) told() (events, entries int64) {
	for _, s := range b.audience.all {
		e, n := s.Vigil.Told()
		events, entries = events+e, entries+n
	}
	return events, entries
}

// cast makes the writers and the subscribers, who listen from the beginning on.
func (b *broadcast) cast(ctx context.Context, writers, subscribers int, length time.Duration) error {
	b.after = make(chan time.Duration, 1)
	for range writers {
		account, err := b.w.cheapAccount()
		if err != nil {
			return err
		}
		b.writers = append(b.writers, account)
	}
	b.w.tell("making subscribers")
	for i := range subscribers {
		p, err := b.person(ctx)
		if err != nil {
			return err
		}
		b.people = append(b.people, p)
		s := b.audience.add(fmt.Sprintf("subscriber-%d", i), p.Account, b.f.clients, p.device)
		s.From = new(int64) // it is new: this is all that there ever was for it
		s.Heard = b.heard
		if b.w.Calm {
			continue
		}
		s.Life = length / 3
		s.ServerSent = i%10 == 2
		if i%10 == 1 {
			s.Doze, s.Heard = length*3/10, nil // its lag is its own
		}
	}
	return b.audience.listen(b.audience.all...)
}

// person makes somebody with a device that can be added to any number of convos.
func (b *broadcast) person(ctx context.Context) (*person, error) {
	account, err := b.w.cheapAccount()
	if err != nil {
		return nil, err
	}
	p, err := newPhone("listener", account, b.w.suite, b.f.clients[0], b.w.model)
	if err != nil {
		return nil, err
	}
	kp, err := p.device.LastResort()
	if err != nil {
		return nil, err
	}
	ref, err := packageRef(kp.Message)
	if err != nil {
		return nil, err
	}
	_, err = b.f.do(ctx, b.w.rng, account, publishCall(kp, b.w.suite, newKey()))
	return &person{Account: account, device: p.deviceID(), ref: ref}, err
}

// heard measures how long an event took.
func (b *broadcast) heard(h *happening, at time.Time, live bool) {
	if !live {
		b.catchUps.Add(1)
		return
	}
	b.lag.add(at.Sub(h.at))
	if done := b.done.Load(); done != 0 && h.at.UnixNano() > done && b.done.CompareAndSwap(done, 0) {
		b.after <- at.Sub(time.Unix(0, b.began.Load()))
	}
}

// furnish makes the convos, several at a time.
func (b *broadcast) furnish(ctx context.Context, convos int) error {
	const lanes = 8
	var all sync.WaitGroup
	errs := make([]error, lanes)
	for lane := range lanes {
		rng := rand.New(rand.NewPCG(b.w.rng.Uint64(), uint64(lane)))
		all.Go(func() {
			for i := lane; i < convos && errs[lane] == nil; i += lanes {
				errs[lane] = b.open(ctx, rng)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// open makes a convo of two writers and some who listen.
func (b *broadcast) open(ctx context.Context, rng *rand.Rand) error {
	r := &room{group: noise(16), writers: []*Account{b.writers[rng.IntN(len(b.writers))]}}
	if second := b.writers[rng.IntN(len(b.writers))]; second != r.writers[0] {
		r.writers = append(r.writers, second)
	}
	members := r.writers[1:len(r.writers):len(r.writers)]
	for i, at := range rng.Perm(len(b.people)) {
		if i < 2+rng.IntN(3) {
			r.in = append(r.in, b.people[at])
			members = append(members, b.people[at].Account)
		} else if len(r.out) < 3 {
			r.out = append(r.out, b.people[at])
		}
	}
	dids := didsOf(members)
	out, err := b.create(ctx, rng, r.writers[0], createCall(r.group, b.w.suite, dids, &Staged{}, newKey()))
	if err != nil {
		return err
	}
	r.id = out
	b.chronicle.Begun(r.id, r.writers[0].DID, append(didsOf(r.writers[:1]), dids...)...)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rooms = append(b.rooms, r)
	return nil
}

// some draws a convo.
func (b *broadcast) some(rng *rand.Rand) *room {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.rooms[rng.IntN(len(b.rooms))]
}
