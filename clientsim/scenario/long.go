package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"mlsd/clientsim/client"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// faultChance is the probability that a request meets a fault.
const faultChance = 0.15

// LongConversation plays many rounds of random actions. Members write, read and rotate keys. Apps
// are killed and devices lose their state. People add devices, join, leave, are removed and come
// back. Answers get lost, requests arrive twice, and the server is killed. The seed decides what
// happens. Only the order of simultaneous actions is not determined.
func LongConversation(ctx context.Context, w *testbed.World) error {
	all, err := w.Phones(ctx, max(w.Clients, 4))
	if err != nil {
		return err
	}
	founders := len(all) / 2
	convo, err := all[0].Create(ctx, testbed.DIDs(all[1:founders])...)
	if err != nil {
		return err
	}
	for _, p := range all[1:founders] {
		if err := p.Join(ctx, convo); err != nil {
			return err
		}
	}
	if err := startSideConvo(ctx, w, all[:founders]); err != nil {
		return err
	}
	t := &conversation{w: w, convo: convo, inside: slices.Clone(all[:founders]), outside: slices.Clone(all[founders:])}
	w.Faults.Use(testbed.NewRandomFaults(w.RNG.Uint64(), faultChance))
	for round := 1; w.Stats.Sent.Load() < int64(w.Messages); round++ {
		if err := t.round(ctx, round); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		w.Progress(fmt.Sprintf("round %d: %d of %d messages, %d members", round, w.Stats.Sent.Load(), w.Messages, len(t.inside)))
	}
	w.Faults.Use(nil)
	return all[0].CommitRemovals(ctx, convo)
}

// startSideConvo makes more convos of some founders, so that their lists have several pages. One is
// never joined, one is read, and one is left.
func startSideConvo(ctx context.Context, w *testbed.World, founders []*client.Phone) error {
	creator, member := founders[0], founders[1]
	if err := member.Publish(ctx, 3); err != nil {
		return err
	}
	for i := range 3 {
		convo, err := creator.Create(ctx, member.Account.DID)
		if err != nil {
			return err
		}
		if err := creator.Send(ctx, convo, fmt.Sprintf("side convo %d", i)); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if err := member.Join(ctx, convo); err != nil {
			return err
		}
		if err := member.MarkReadBehind(ctx, convo, 0); err != nil {
			return err
		}
		if i == 2 {
			if err := member.Leave(ctx, convo); err != nil {
				return err
			}
			if err := creator.CommitRemovals(ctx, convo); err != nil {
				return err
			}
		}
	}
	return nil
}

// conversation is a long conversation between two rounds.
type conversation struct {
	w     *testbed.World
	convo string
	// inside[0] is the creator, who stays. An account may have several devices inside. Outside it
	// has one.
	inside, outside []*client.Phone
}

// turnPlan is what one phone does in a round.
type turnPlan struct {
	phone    *client.Phone
	rng      *rand.Rand
	messages int
	hidden   bool // commits in PrivateMessages
	tidy     bool
	rotate   bool
	lose     bool
	tablet   *client.Phone // a further device of the same account
	add      *client.Phone // a phone from outside
	remove   *client.Phone // only the creator may
	leave    bool
}

// round draws the plans, plays them at the same time, and updates the lists of phones inside and
// outside.
func (t *conversation) round(ctx context.Context, number int) error {
	parts := t.planRound()
	if err := t.makePhones(parts, number); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(parts)+1)
	var all sync.WaitGroup
	if t.w.Server != nil && t.w.RNG.IntN(4) == 0 {
		point := []string{testbed.BeforeCommit, testbed.AfterCommit}[t.w.RNG.IntN(2)]
		parts[0].messages++ // the failpoint needs a message
		if err := t.w.Server.Arm(ctx, point, xrpc.NSID("sendMessage"), "kill"); err != nil {
			return err
		}
		all.Go(func() { errs[len(parts)] = t.restorePhones(ctx) })
	}
	for i, part := range parts {
		all.Go(func() { errs[i] = t.play(ctx, part, number) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, part := range parts {
		t.playRound(part)
	}
	return nil
}

// makePhones now and then gives a member that stays another device.
func (t *conversation) makePhones(parts []*turnPlan, number int) (err error) {
	part := parts[t.w.RNG.IntN(len(parts))]
	devices := 0
	for _, p := range t.inside {
		if p.Account == part.phone.Account {
			devices++
		}
	}
	if t.w.RNG.IntN(3) > 0 || devices >= mostDevices || part.leave {
		return nil
	}
	part.tablet, err = t.w.SecondDevice(part.phone, fmt.Sprintf("%s+%d", part.phone.Name, number))
	return err
}

// mostDevices is how many devices of one account take part at most.
const mostDevices = 3

func (t *conversation) restorePhones(ctx context.Context) error {
	if err := t.w.Server.Died(ctx); err != nil {
		return err
	}
	return t.w.Server.Start(ctx, nil)
}

func (t *conversation) planRound() []*turnPlan {
	rng := t.w.RNG
	parts := make([]*turnPlan, len(t.inside))
	for i, p := range t.inside {
		parts[i] = &turnPlan{
			phone: p, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), messages: rng.IntN(4),
			hidden: rng.IntN(2) == 0, tidy: rng.IntN(4) == 0, rotate: rng.IntN(4) == 0, lose: rng.IntN(10) == 0,
		}
	}
	if len(t.outside) > 0 && rng.IntN(3) > 0 {
		parts[rng.IntN(len(parts))].add = t.outside[rng.IntN(len(t.outside))]
	}
	if gone := parts[rng.IntN(len(parts))]; t.mayLeave(parts, gone.phone) {
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

// mayLeave decides whether a phone leaves. Enough members must stay. The creator stays, and so does
// a phone that is about to add another.
func (t *conversation) mayLeave(parts []*turnPlan, p *client.Phone) bool {
	people := map[*xrpc.Account]bool{}
	for _, part := range parts {
		people[part.phone.Account] = true
		if part.phone.Account == p.Account && part.add != nil {
			return false
		}
	}
	return len(people) > 3 && p.Account != t.inside[0].Account && t.w.RNG.IntN(2) == 0
}

// others returns the plans of other accounts, without except.
func others(parts []*turnPlan, p *client.Phone, except *turnPlan) []*turnPlan {
	return slices.DeleteFunc(parts, func(q *turnPlan) bool { return q.phone.Account == p.Account && q != except })
}

// playRound updates the lists after a plan was played.
func (t *conversation) playRound(part *turnPlan) {
	if part.tablet != nil {
		t.inside = append(t.inside, part.tablet)
	}
	if part.add != nil {
		t.inside = append(t.inside, part.add)
		t.outside = slices.DeleteFunc(t.outside, func(p *client.Phone) bool { return p == part.add })
	}
	if part.leave {
		t.recordLeave(part.phone)
	}
	if part.remove != nil {
		t.recordLeave(part.remove)
	}
}

// recordLeave takes an account out. One of its devices may come back.
func (t *conversation) recordLeave(gone *client.Phone) {
	t.inside = slices.DeleteFunc(t.inside, func(p *client.Phone) bool {
		if p.Account == gone.Account && p != gone {
			t.w.Retire(p)
		}
		return p.Account == gone.Account
	})
	t.outside = append(t.outside, gone)
}
