package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// How Reset plays.
const (
	resetMembers = 30
	resetters    = 3
	lostPackets  = 0.1 // share of the requests
)

// resetting is a convo that is being reset.
type resetting struct {
	w       *testbed.World
	convo   string
	mallory *client.Phone
	honest  []*client.Phone
	stuck   map[*client.Phone]bool // phones that cannot process mallory's commit

	mu    sync.Mutex // guards the fields below
	sent  map[string]sentText
	won   int
	lost  int // resets that came after another reset
	moved int // messages that went into the successor instead
}

// sentText is an acknowledged message.
type sentText struct {
	convo string
	epoch uint64
}

// Reset splits a group of 30 members by a commit that half of them cannot process. Three members
// reset the convo at once, while all members go on writing, packets are lost, and the server is
// killed around the COMMIT of a reset. Every member finds the successor in the log, in a refusal or
// in getConvo, and enters it with a Welcome or by external commit. Some apps are killed on the way.
// All honest devices must be in one successor, and no device in another. Every acknowledged message
// can be read.
func Reset(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, resetMembers))
	bad := w.RNG.IntN(resetMembers)
	r := &resetting{w: w, convo: convo, mallory: phones[bad], honest: slices.Delete(slices.Clone(phones), bad, bad+1),
		stuck: map[*client.Phone]bool{}, sent: map[string]sentText{}}
	for _, p := range phones {
		p.Model = nil // the model follows no reset, so the scenario checks this itself
		w.Retire(p)
		Check(p.Publish(ctx, resetters))
	}
	for _, p := range r.honest[:3] {
		Check(r.send(ctx, p, "before the split"))
	}
	r.split(ctx)
	r.play(ctx)
	r.judge(ctx)
}

// send sends a text into the convo or its successor, and records where the text was acknowledged.
func (r *resetting) send(ctx context.Context, p *client.Phone, about string) (err error) {
	defer Catch(&err)
	text := about + ", by " + p.Name
	where := Must(p.SendOn(ctx, r.convo, text))
	group, err := p.Group(where) // in the message's epoch: the phone has read nothing since
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent[text] = sentText{where, group.Epoch()}
	if where != r.convo {
		r.moved++
	}
	return nil
}

// split makes mallory's commit win the epoch. Half of the others cannot process it.
func (r *resetting) split(ctx context.Context) {
	for _, p := range append([]*client.Phone{r.mallory}, r.honest...) {
		Check(p.Sync(ctx, r.convo))
	}
	draft := Must(r.mallory.DraftStaged(r.convo, func(g mlsclient.Group) (*mlsclient.Staged, error) {
		return mlsclient.StageGarbage(g, mlsclient.Garbage{Spoil: func(n int) []int { return r.w.RNG.Perm(n)[:n/2] }})
	}))
	Must(r.mallory.Deliver(ctx, draft))
	for _, p := range r.honest {
		err := p.Sync(ctx, r.convo)
		if failed := new(client.CommitError); errors.As(err, &failed) {
			r.stuck[p], err = true, nil
		}
		Check(err)
	}
	for _, p := range r.honest {
		if !r.stuck[p] {
			Check(r.send(ctx, p, "after the split"))
			break
		}
	}
}

// play lets the members reset and write at once, through faults.
func (r *resetting) play(ctx context.Context) {
	point := []string{testbed.BeforeCommit, testbed.AfterCommit}[r.w.RNG.IntN(2)]
	Check(r.w.Server.Arm(ctx, point, mlsapi.NSIDResetConvo, "kill"))
	r.w.Faults.Use(testbed.NewRandomFaults(r.w.Seed, lostPackets))
	order := r.w.RNG.Perm(len(r.honest))
	errs := make([]error, len(r.honest))
	var all sync.WaitGroup
	for n, i := range order {
		p, rng := r.honest[i], rand.New(rand.NewPCG(r.w.Seed, uint64(i)))
		all.Go(func() {
			errs[i] = Attempt(func() { r.live(ctx, p, rng, n < resetters) })
			if errs[i] != nil {
				errs[i] = fmt.Errorf("%s: %w", p.Name, errs[i])
			}
		})
	}
	died := r.w.Server.Died()
	if died == nil {
		died = r.w.Server.Start(ctx, nil)
	}
	all.Wait()
	r.w.Faults.Use(nil)
	Check(errors.Join(append(errs, died)...))
}

// live is what one honest member does.
func (r *resetting) live(ctx context.Context, p *client.Phone, rng *rand.Rand, resets bool) {
	xrpc.Sleep(ctx, time.Duration(rng.IntN(300))*time.Millisecond)
	if resets {
		r.reset(ctx, p, rng)
	} else if !r.stuck[p] {
		Check(r.send(ctx, p, "meanwhile"))
	}
	for {
		if rng.IntN(5) == 0 { // the app is killed and starts again
			p.Kill()
			Check(p.Launch())
			Check(p.Flush(ctx))
		}
		next := Must(p.GoOn(ctx, r.convo))
		if next != r.convo {
			break
		}
		Check(pause(ctx, 50*time.Millisecond))
	}
	Check(r.send(ctx, p, "in the successor"))
}

// reset resets the convo, with the devices of most members in the new group.
func (r *resetting) reset(ctx context.Context, p *client.Phone, rng *rand.Rand) {
	others := slices.DeleteFunc(slices.Clone(r.honest), func(o *client.Phone) bool { return o == p || rng.IntN(6) == 0 })
	packages, err := p.Claim(ctx, r.convo, testbed.DIDs(others))
	Check(err)
	draft := Must(p.DraftReset(r.convo, "forked", packages))
	if rng.IntN(3) == 0 { // the app is killed with the draft in its outbox
		p.Kill()
		Check(p.Launch())
	}
	_, err = p.Deliver(ctx, draft)
	r.mu.Lock()
	defer r.mu.Unlock()
	if client.SuccessorIn(err) != "" {
		r.lost++
		return
	}
	Check(err)
	r.won++
}

// judge checks in which convo everybody is, and which messages they have read.
func (r *resetting) judge(ctx context.Context) {
	successor := *Must(r.honest[0].Convo(ctx, r.convo)).SuccessorConvoID
	for _, p := range r.honest {
		Check(p.Sync(ctx, successor)) // first reads the commits of all who entered
	}
	first := Must(r.honest[0].Group(successor))
	byWelcome := 0
	for _, p := range r.honest {
		group := Must(p.Group(successor))
		if threads := slices.Sorted(maps.Keys(p.Threads)); len(threads) != 2 || !slices.Contains(threads, successor) {
			r.w.Broken("%s is in %v, want %s and its successor %s", p.Name, threads, r.convo, successor)
		}
		if !bytes.Equal(group.Authenticator(), first.Authenticator()) {
			r.w.Broken("%s is in another epoch or fork of the successor than %s", p.Name, r.honest[0].Name)
		}
		if p.Threads[successor].Entered == 1 {
			byWelcome++
		}
	}
	if r.won != 1 || r.won+r.lost != resetters {
		r.w.Broken("%d resets won and %d lost, want 1 of %d", r.won, r.lost, resetters)
	}
	Check(r.send(ctx, r.honest[0], "to all"))
	for _, p := range r.honest {
		Check(p.Sync(ctx, successor))
		r.read(p, successor)
	}
	r.w.Note("%d members, %d could not process the commit; 1 reset won, %d lost; %d entered with a Welcome, "+
		"%d by external commit; %d messages went into the successor", resetMembers, len(r.stuck), r.lost, byWelcome,
		len(r.honest)-byWelcome, r.moved)
}

// read checks that a phone has read every acknowledged message of the epochs in which it was.
func (r *resetting) read(p *client.Phone, successor string) {
	for _, convo := range []string{r.convo, successor} {
		texts := map[string]int{}
		for _, item := range Must(p.Inbox(convo)) {
			texts[item.Text]++
		}
		entered, last := p.Threads[convo].Entered, Must(p.Group(convo)).Epoch()
		for text, s := range r.sent {
			switch n := texts[text]; {
			case s.convo != convo && n > 0:
				r.w.Report(history.Violation{Kind: history.Duplicated, Convo: convo, Who: p.Name,
					What: fmt.Sprintf("%q was acknowledged in the other convo", text)})
			case s.convo == convo && n > 1:
				r.w.Report(history.Violation{Kind: history.Duplicated, Convo: convo, Who: p.Name, What: text})
			case s.convo == convo && n == 0 && s.epoch >= entered && s.epoch <= last:
				r.w.Report(history.Violation{Kind: history.Lost, Convo: convo, Who: p.Name,
					What: fmt.Sprintf("%q, acknowledged, was never read", text)})
			}
		}
	}
}
