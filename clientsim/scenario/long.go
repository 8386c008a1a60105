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
func LongConversation(ctx context.Context, w *testbed.World) {
	all := must(w.Phones(ctx, max(w.Clients, 4)))
	founders := len(all) / 2
	convo := must(all[0].Create(ctx, testbed.DIDs(all[1:founders])...))
	for _, p := range all[1:founders] {
		check(p.Join(ctx, convo))
	}
	startSideConvo(ctx, w, all[:founders])
	t := &conversation{w: w, convo: convo, inside: slices.Clone(all[:founders]), outside: slices.Clone(all[founders:])}
	w.Faults.Use(testbed.NewRandomFaults(w.RNG.Uint64(), faultChance))
	for round := 1; w.Stats.Sent.Load() < int64(w.Messages); round++ {
		if err := attempt(func() { t.round(ctx, round) }); err != nil {
			fail("round %d: %w", round, err)
		}
		w.Progress(fmt.Sprintf("round %d: %d of %d messages, %d members", round, w.Stats.Sent.Load(), w.Messages,
			len(t.inside)))
	}
	w.Faults.Use(nil)
	check(all[0].CommitRemovals(ctx, convo))
}

// startSideConvo makes more convos of some founders, so that their lists have several pages. One is
// never joined, one is read, and one is left.
func startSideConvo(ctx context.Context, w *testbed.World, founders []*client.Phone) {
	creator, member := founders[0], founders[1]
	check(member.Publish(ctx, 3))
	for i := range 3 {
		convo := must(creator.Create(ctx, member.Account.DID))
		check(creator.Send(ctx, convo, fmt.Sprintf("side convo %d", i)))
		if i == 0 {
			continue
		}
		check(member.Join(ctx, convo))
		check(member.MarkReadBehind(ctx, convo, 0))
		if i == 2 {
			check(member.Leave(ctx, convo))
			check(creator.CommitRemovals(ctx, convo))
		}
	}
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
func (t *conversation) round(ctx context.Context, number int) {
	parts := t.planRound()
	t.makePhones(parts, number)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(parts)+1)
	var all sync.WaitGroup
	if t.w.Server != nil && t.w.RNG.IntN(4) == 0 {
		point := []string{testbed.BeforeCommit, testbed.AfterCommit}[t.w.RNG.IntN(2)]
		parts[0].messages++ // the failpoint needs a message
		check(t.w.Server.Arm(ctx, point, xrpc.NSID("sendMessage"), "kill"))
		all.Go(func() { errs[len(parts)] = attempt(func() { t.restorePhones(ctx) }) })
	}
	for i, part := range parts {
		all.Go(func() { errs[i] = attempt(func() { t.play(ctx, part, number) }) })
	}
	all.Wait()
	check(errors.Join(errs...))
	for _, part := range parts {
		t.playRound(part)
	}
}

// makePhones now and then gives a member that stays another device.
func (t *conversation) makePhones(parts []*turnPlan, number int) {
	part := parts[t.w.RNG.IntN(len(parts))]
	devices := 0
	for _, p := range t.inside {
		if p.Account == part.phone.Account {
			devices++
		}
	}
	if t.w.RNG.IntN(3) > 0 || devices >= mostDevices || part.leave {
		return
	}
	part.tablet = must(t.w.SecondDevice(part.phone, fmt.Sprintf("%s+%d", part.phone.Name, number)))
}

// mostDevices is how many devices of one account take part at most.
const mostDevices = 3

func (t *conversation) restorePhones(ctx context.Context) {
	check(t.w.Server.Died())
	check(t.w.Server.Start(ctx, nil))
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
