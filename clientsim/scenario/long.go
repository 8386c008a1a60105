package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// faultChance is the probability that a request meets a fault.
const faultChance = 0.15

// LongConversation plays many rounds of random actions. Members write, read and rotate keys. Apps
// are killed and devices lose their state. People add devices, join, leave, are removed and come
// back. Answers get lost, requests arrive twice, and the server is killed. The seed decides what
// happens. Only the order of simultaneous actions is not determined.
func LongConversation(ctx context.Context, w *testbed.World) {
	all := Must(w.Phones(ctx, max(w.Clients, 4)))
	founders := len(all) / 2
	convo := Must(all[0].Create(ctx, testbed.DIDs(all[1:founders])...))
	for _, p := range all[1:founders] {
		Check(p.Join(ctx, convo))
	}
	startSideConvos(ctx, w, all[:founders])
	t := &conversation{w: w, convo: convo, inside: slices.Clone(all[:founders]), outside: slices.Clone(all[founders:])}
	w.Faults.Use(testbed.NewRandomFaults(w.RNG.Uint64(), faultChance))
	for round := 1; w.Stats.Sent.Load() < int64(w.Messages); round++ {
		Check(errs.Wrap(Attempt(func() { t.round(ctx, round) }), "round %d", round))
		w.Progress(fmt.Sprintf("round %d: %d of %d messages, %d members", round, w.Stats.Sent.Load(), w.Messages,
			len(t.inside)))
	}
	w.Faults.Use(nil)
	Check(all[0].CommitRemovals(ctx, convo))
}

// startSideConvos makes three more convos of some founders, so that their lists have several pages.
// One is never joined, one is read, and one is left.
func startSideConvos(ctx context.Context, w *testbed.World, founders []*client.Phone) {
	creator, member := founders[0], founders[1]
	Check(member.Publish(ctx, 3))
	for i := range 3 {
		convo := Must(creator.Create(ctx, member.Account.DID))
		Check(creator.Send(ctx, convo, fmt.Sprintf("side convo %d", i)))
		if i == 0 {
			continue
		}
		Check(member.Join(ctx, convo))
		Check(member.MarkReadBehind(ctx, convo, 0))
		if i == 2 {
			Check(member.Leave(ctx, convo))
			Check(creator.CommitRemovals(ctx, convo))
		}
	}
}

// conversation is the state of a long conversation. Rounds change it.
type conversation struct {
	w     *testbed.World
	convo string
	// inside[0] is the creator, who stays. An account may have several devices inside, and one
	// outside.
	inside, outside []*client.Phone
}

// phonePlan is what one phone does in a round.
type phonePlan struct {
	phone    *client.Phone
	rng      *rand.Rand
	messages int           // how many messages the phone sends
	hidden   bool          // commits in PrivateMessages
	tidy     bool          // commits the removal of members that have left
	rotate   bool          // commits a new key
	lose     bool          // first loses its state and recovers
	tablet   *client.Phone // a further device of the same account
	add      *client.Phone // a phone from outside
	remove   *client.Phone // a member to remove; only the creator may
	leave    bool
}

// round draws the plans, plays them at the same time, and updates the lists of phones inside and
// outside.
func (t *conversation) round(ctx context.Context, number int) {
	plans := t.planRound()
	t.maybeAddDevice(plans, number)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []func()
	if t.w.Server != nil && t.w.RNG.IntN(4) == 0 {
		point := []string{testbed.BeforeCommit, testbed.AfterCommit}[t.w.RNG.IntN(2)]
		plans[0].messages++ // the failpoint needs a message
		Check(t.w.Server.Arm(ctx, point, xrpc.NSID("sendMessage"), "kill"))
		all = append(all, func() { t.restartServer(ctx) })
	}
	for _, plan := range plans {
		all = append(all, func() { t.play(ctx, plan, number) })
	}
	AtOnce(all...)
	for _, plan := range plans {
		t.update(plan)
	}
}

// maybeAddDevice now and then gives a further device to a member that does not leave.
func (t *conversation) maybeAddDevice(plans []*phonePlan, number int) {
	plan := plans[t.w.RNG.IntN(len(plans))]
	devices := 0
	for _, p := range t.inside {
		if p.Account == plan.phone.Account {
			devices++
		}
	}
	if t.w.RNG.IntN(3) > 0 || devices >= maxDevices || plan.leave {
		return
	}
	plan.tablet = Must(t.w.SecondDevice(plan.phone, fmt.Sprintf("%s+%d", plan.phone.Name, number)))
}

// maxDevices is how many devices of one account take part at most.
const maxDevices = 3

func (t *conversation) restartServer(ctx context.Context) {
	Check(t.w.Server.Died())
	Check(t.w.Server.Start(ctx, nil))
}

func (t *conversation) planRound() []*phonePlan {
	rng := t.w.RNG
	plans := make([]*phonePlan, len(t.inside))
	for i, p := range t.inside {
		plans[i] = &phonePlan{
			phone: p, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), messages: rng.IntN(4),
			hidden: rng.IntN(2) == 0, tidy: rng.IntN(4) == 0, rotate: rng.IntN(4) == 0, lose: rng.IntN(10) == 0,
		}
	}
	if len(t.outside) > 0 && rng.IntN(3) > 0 {
		plans[rng.IntN(len(plans))].add = t.outside[rng.IntN(len(t.outside))]
	}
	if gone := plans[rng.IntN(len(plans))]; t.mayLeave(plans, gone.phone) {
		switch rng.IntN(2) {
		case 0:
			gone.leave = true
			plans = dropAccount(plans, gone.phone, gone)
		case 1:
			plans[0].remove = gone.phone
			plans = dropAccount(plans, gone.phone, nil)
		}
	}
	return plans
}

// mayLeave decides whether a phone leaves. Enough members must stay. The creator stays, and so does
// a phone that is about to add another.
func (t *conversation) mayLeave(plans []*phonePlan, p *client.Phone) bool {
	people := map[*xrpc.Account]bool{}
	for _, plan := range plans {
		people[plan.phone.Account] = true
		if plan.phone.Account == p.Account && plan.add != nil {
			return false
		}
	}
	return len(people) > 3 && p.Account != t.inside[0].Account && t.w.RNG.IntN(2) == 0
}

// dropAccount returns plans without the plans of an account's phones, but keeps except.
func dropAccount(plans []*phonePlan, p *client.Phone, except *phonePlan) []*phonePlan {
	return slices.DeleteFunc(plans, func(q *phonePlan) bool { return q.phone.Account == p.Account && q != except })
}

// update updates the lists of phones after a plan was played.
func (t *conversation) update(plan *phonePlan) {
	if plan.tablet != nil {
		t.inside = append(t.inside, plan.tablet)
	}
	if plan.add != nil {
		t.inside = append(t.inside, plan.add)
		t.outside = slices.DeleteFunc(t.outside, func(p *client.Phone) bool { return p == plan.add })
	}
	if plan.leave {
		t.recordLeave(plan.phone)
	}
	if plan.remove != nil {
		t.recordLeave(plan.remove)
	}
}

// recordLeave moves gone outside. From there, gone may come back. Other devices of its account
// retire.
func (t *conversation) recordLeave(gone *client.Phone) {
	t.inside = slices.DeleteFunc(t.inside, func(p *client.Phone) bool {
		if p.Account == gone.Account && p != gone {
			t.w.Retire(p)
		}
		return p.Account == gone.Account
	})
	t.outside = append(t.outside, gone)
}

// play plays one phone's plan of a round.
func (t *conversation) play(ctx context.Context, plan *phonePlan, round int) {
	p := plan.phone
	p.Device.HideHandshakes(plan.hidden)
	if plan.lose {
		Check(p.Recover(ctx, plan.rng.IntN(2) == 0))
	}
	for i := range plan.messages {
		t.maybeKill(ctx, plan)
		Check(p.Send(ctx, t.convo, fmt.Sprintf("round %d, %s, %d", round, p.Name, i)))
	}
	t.commits(ctx, plan)
	if plan.leave {
		Check(p.Leave(ctx, t.convo))
		return
	}
	Check(p.Sync(ctx, t.convo))
	if plan.rng.IntN(2) > 0 { // an older report arrives after a newer one
		Check(p.MarkReadBehind(ctx, t.convo, plan.rng.Int64N(5)))
	}
}

// commits makes the commits of a plan.
func (t *conversation) commits(ctx context.Context, plan *phonePlan) {
	p := plan.phone
	if plan.tidy || plan.add != nil {
		Check(p.CommitRemovals(ctx, t.convo))
	}
	if plan.rotate {
		Check(p.Rotate(ctx, t.convo))
	}
	if plan.tablet != nil {
		t.bring(ctx, plan)
	}
	if plan.add != nil {
		t.invite(ctx, plan)
	}
	if plan.remove != nil {
		Check(p.Remove(ctx, t.convo, plan.remove.Account.DID))
	}
}

// bring adds another device of a member. Either the member adds it, or it joins by external commit.
func (t *conversation) bring(ctx context.Context, plan *phonePlan) {
	if plan.rng.IntN(2) == 0 {
		Check(plan.tablet.Rejoin(ctx, t.convo))
		return
	}
	Check(plan.tablet.Publish(ctx, 1))
	Check(plan.phone.AddOwn(ctx, t.convo, plan.tablet))
	Check(plan.tablet.Join(ctx, t.convo))
}

// invite adds a phone, which joins at once. Its app may be killed on the way.
func (t *conversation) invite(ctx context.Context, plan *phonePlan) {
	joiner := plan.add
	Check(joiner.Publish(ctx, 1))
	Check(plan.phone.Add(ctx, t.convo, joiner.Account.DID))
	out, err := joiner.FetchWelcome(ctx, t.convo)
	if xrpc.ErrorName(err) == mlsapi.ErrWelcomeNotFound && joiner.FormerKey != nil {
		// The KeyPackage belongs to a state that the device has lost.
		Check(joiner.Rejoin(ctx, t.convo))
		return
	}
	Check(err)
	if plan.rng.IntN(3) == 0 {
		joiner.Kill()
		Check(joiner.Launch())
		out = Must(joiner.FetchWelcome(ctx, t.convo))
	}
	Check(joiner.SaveWelcome(out))
	Check(joiner.FinishJoin(ctx, t.convo))
}

// maybeKill kills the app now and then: idle, or with a message in its outbox that was sent once
// with an unknown outcome.
func (t *conversation) maybeKill(ctx context.Context, plan *phonePlan) {
	p := plan.phone
	switch plan.rng.IntN(12) {
	case 0:
		p.Kill()
	case 1:
		d := Must(p.DraftSend(t.convo, "last words "+xrpc.NewKey()))
		if _, err := t.w.Net.Once(ctx, p.Account, d.Call); xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch {
			Check(p.Drop(d))
			return
		}
		p.Kill()
	default:
		return
	}
	Check(p.Launch())
	Check(p.Flush(ctx))
}
