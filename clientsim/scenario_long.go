package clientsim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
)

// stormy is the chance of each request to meet a fault.
const stormy = 0.15

// LongConversation is a life of its own: in every round each member talks,
// reads, rotates its keys, and now and then has its app killed or loses all it
// had; people get further devices, are added, leave, are removed and come back;
// commits are readable or not; answers get lost, requests arrive twice, and the
// server is killed. What happens is drawn from the seed. Only the order of what
// happens at the same time is not.
func LongConversation(ctx context.Context, w *World) error {
	all, err := w.Phones(ctx, max(w.Clients, 4))
	if err != nil {
		return err
	}
	founders := len(all) / 2
	convo, err := all[0].Create(ctx, dids(all[1:founders])...)
	if err != nil {
		return err
	}
	for _, p := range all[1:founders] {
		if err := p.Join(ctx, convo); err != nil {
			return err
		}
	}
	if err := w.aside(ctx, all[:founders]); err != nil {
		return err
	}
	t := &talk{w: w, convo: convo, inside: slices.Clone(all[:founders]), outside: slices.Clone(all[founders:])}
	w.Faults.Use(NewWeather(w.rng.Uint64(), stormy))
	for round := 1; w.Stats.Sent.Load() < int64(w.Messages); round++ {
		if err := t.round(ctx, round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		w.tell(fmt.Sprintf("round %d: %d of %d messages, %d members", round, w.Stats.Sent.Load(), w.Messages, len(t.inside)))
	}
	w.Faults.Use(nil)
	return all[0].Tidy(ctx, convo)
}

// aside makes further convos of some of the founders, so that their lists have
// several pages: one that nobody joins yet, one that its member reads, and one
// that its member leaves.
func (w *World) aside(ctx context.Context, founders []*Phone) error {
	creator, member := founders[0], founders[1]
	if err := member.Publish(ctx, 3); err != nil {
		return err
	}
	for i := range 3 {
		convo, err := creator.Create(ctx, member.Account.DID)
		if err != nil {
			return err
		}
		if err := creator.Send(ctx, convo, fmt.Sprintf("aside %d", i)); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if err := member.Join(ctx, convo); err != nil {
			return err
		}
		if err := member.markRead(ctx, convo, 0); err != nil {
			return err
		}
		if i == 2 {
			if err := member.Leave(ctx, convo); err != nil {
				return err
			}
			if err := creator.Tidy(ctx, convo); err != nil {
				return err
			}
		}
	}
	return nil
}

// talk is a long conversation between two rounds.
type talk struct {
	w     *World
	convo string
	// inside[0] is the creator, who stays. An account may have several devices
	// inside; outside it has one.
	inside, outside []*Phone
}

// part is what one phone does in a round.
type part struct {
	phone    *Phone
	rng      *rand.Rand
	messages int
	hidden   bool // commits in PrivateMessages
	tidy     bool
	rotate   bool
	lose     bool
	tablet   *Phone // a further device of the same account
	add      *Phone // somebody from outside
	remove   *Phone // only the creator may
	leave    bool
}

// round draws the parts, plays them at the same time, and brings the lists of
// who is inside and outside up to date.
func (t *talk) round(ctx context.Context, number int) error {
	parts := t.draw()
	if err := t.equip(parts, number); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(parts)+1)
	var all sync.WaitGroup
	if t.w.Server != nil && t.w.rng.IntN(4) == 0 {
		point := []string{BeforeCommit, AfterCommit}[t.w.rng.IntN(2)]
		parts[0].messages++ // somebody has to pull the trigger
		if err := t.w.Server.Arm(ctx, point, nsid("sendMessage"), "kill"); err != nil {
			return err
		}
		all.Go(func() { errs[len(parts)] = t.resurrect(ctx) })
	}
	for i, part := range parts {
		all.Go(func() { errs[i] = t.play(ctx, part, number) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, part := range parts {
		t.move(part)
	}
	return nil
}

// equip gives one of those who stay a further device, now and then.
func (t *talk) equip(parts []*part, number int) (err error) {
	part := parts[t.w.rng.IntN(len(parts))]
	devices := 0
	for _, p := range t.inside {
		if p.Account == part.phone.Account {
			devices++
		}
	}
	if t.w.rng.IntN(3) > 0 || devices >= mostDevices || part.leave {
		return nil
	}
	part.tablet, err = t.w.SecondDevice(part.phone, fmt.Sprintf("%s+%d", part.phone.Name, number))
	return err
}

// mostDevices is how many devices of one account take part at most.
const mostDevices = 3

func (t *talk) resurrect(ctx context.Context) error {
	if err := t.w.Server.Died(ctx); err != nil {
		return err
	}
	return t.w.Server.Start(ctx, nil)
}

func (t *talk) draw() []*part {
	rng := t.w.rng
	parts := make([]*part, len(t.inside))
	for i, p := range t.inside {
		parts[i] = &part{
			phone: p, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), messages: rng.IntN(4),
			hidden: rng.IntN(2) == 0, tidy: rng.IntN(4) == 0, rotate: rng.IntN(4) == 0, lose: rng.IntN(10) == 0,
		}
	}
	if len(t.outside) > 0 && rng.IntN(3) > 0 {
		parts[rng.IntN(len(parts))].add = t.outside[rng.IntN(len(t.outside))]
	}
	if gone := parts[rng.IntN(len(parts))]; t.mayGo(parts, gone.phone) {
		switch rng.IntN(2) {
		case 0:
			gone.leave = true
			parts = others(parts, gone.phone, gone)
		case 1:
			parts[0].remove = gone.phone
			parts = others(parts, gone.phone, nil)
		}
	}
	return parts
}

// mayGo: somebody goes now and then, if enough people stay; never the creator,
// and nobody who is about to add another.
func (t *talk) mayGo(parts []*part, p *Phone) bool {
	people := map[*Account]bool{}
	for _, part := range parts {
		people[part.phone.Account] = true
		if part.phone.Account == p.Account && part.add != nil {
			return false
		}
	}
	return len(people) > 3 && p.Account != t.inside[0].Account && t.w.rng.IntN(2) == 0
}

// others are the parts without those of an account's devices, except one.
func others(parts []*part, p *Phone, except *part) []*part {
	return slices.DeleteFunc(parts, func(q *part) bool { return q.phone.Account == p.Account && q != except })
}

// move brings the lists up to date with a part that was played.
func (t *talk) move(part *part) {
	if part.tablet != nil {
		t.inside = append(t.inside, part.tablet)
	}
	if part.add != nil {
		t.inside = append(t.inside, part.add)
		t.outside = slices.DeleteFunc(t.outside, func(p *Phone) bool { return p == part.add })
	}
	if part.leave {
		t.goes(part.phone)
	}
	if part.remove != nil {
		t.goes(part.remove)
	}
}

// goes takes an account out. Of its devices one may come back.
func (t *talk) goes(gone *Phone) {
	t.inside = slices.DeleteFunc(t.inside, func(p *Phone) bool {
		if p.Account == gone.Account && p != gone {
			t.w.Retire(p)
		}
		return p.Account == gone.Account
	})
	t.outside = append(t.outside, gone)
}
