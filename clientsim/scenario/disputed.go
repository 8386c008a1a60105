package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// How disputed plays.
const (
	minDisputing, maxDisputing = 8, 50 // members
	// convergeWithin is the time in which all honest members must be in one epoch again.
	convergeWithin = time.Minute
	// lookEvery is about how often a member reads the log.
	lookEvery = 500 * time.Millisecond
	// sayEvery is how often a member says again which epoch it is in. A client does that on the event,
	// but here nobody receives events.
	sayEvery = 2 * time.Second
)

// dispute is a convo in which one member's hidden commit is garbage to half of the others.
type dispute struct {
	w       *testbed.World
	convo   string
	mallory *client.Phone
	honest  []*client.Phone
	badInfo bool

	epoch    uint64 // the epoch that the garbage began
	begun    time.Time
	done     atomic.Bool
	stuck    atomic.Int32
	disputed atomic.Int32 // devices that learned of the dispute
	attempts atomic.Int32
	tried    atomic.Bool // a member has tried an ordinary commit during the dispute
	refused  atomic.Bool // that member got ConvoDisputed
	texts    atomic.Int32
}

// Disputed makes a member of a group of 8 to 50 commit in a PrivateMessage that is garbage to half
// of the others. In every third run, the commit's GroupInfo is also unusable. The others go on
// writing. They report the commit, and come back by external commit. All members must be in one
// epoch within a minute, and no acknowledged message may be lost.
func Disputed(ctx context.Context, w *testbed.World) {
	n := minDisputing + w.RNG.IntN(maxDisputing-minDisputing+1)
	phones, convo := Must2(w.Convo(ctx, n))
	bad := 1 + w.RNG.IntN(n-1)
	d := &dispute{w: w, convo: convo, mallory: phones[bad], honest: slices.Delete(slices.Clone(phones), bad, bad+1),
		badInfo: w.RNG.IntN(3) == 0}
	d.garbage(ctx)
	took := Must(d.converge(ctx))
	d.finish(ctx, took)
}

// garbage makes mallory's commit win the epoch.
func (d *dispute) garbage(ctx context.Context) {
	for _, p := range d.honest[:2] {
		Check(p.Send(ctx, d.convo, "before, by "+p.Name))
	}
	Check(d.mallory.Sync(ctx, d.convo))
	draft := Must(d.mallory.DraftStaged(d.convo, func(g mlsclient.Group) (*mlsclient.Staged, error) {
		return mlsclient.StageGarbage(g, mlsclient.Garbage{
			Spoil: func(n int) []int { return d.w.RNG.Perm(n)[:n/2] }, BadInfo: d.badInfo,
		})
	}))
	Must(d.mallory.Deliver(ctx, draft))
	d.epoch, d.begun = draft.Epoch, time.Now()
	Check(d.mallory.Sync(ctx, d.convo))
}

// converge lets all honest members act as clients do, until they are in one epoch.
func (d *dispute) converge(ctx context.Context) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*convergeWithin)
	defer cancel()
	locks := make([]sync.Mutex, len(d.honest)) // one per phone: a phone is not safe for concurrent use
	errs := make([]error, len(d.honest))
	var all sync.WaitGroup
	for i, p := range d.honest {
		rng := rand.New(rand.NewPCG(d.w.Seed, uint64(i)))
		all.Go(func() {
			if errs[i] = Attempt(func() { d.live(ctx, p, &locks[i], rng, i) }); errs[i] != nil {
				cancel()
			}
		})
	}
	for ctx.Err() == nil && !d.agree(locks) {
		if err := pause(ctx, lookEvery/3); err != nil {
			break
		}
	}
	took = time.Since(d.begun)
	d.done.Store(true)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return took, err
	}
	return took, context.Cause(ctx)
}

// live is the work of one member: it follows the log, says which epoch it has entered, and writes
// now and then.
func (d *dispute) live(ctx context.Context, p *client.Phone, lock *sync.Mutex, rng *rand.Rand, i int) {
	var so progress
	for !d.done.Load() {
		lock.Lock()
		err := Attempt(func() { d.step(ctx, p, rng, i, &so) })
		lock.Unlock()
		Check(errs.Wrap(err, "%s", p.Name))
		Check(pause(ctx, lookEvery/2+time.Duration(rng.Int64N(int64(lookEvery)))))
	}
}

// progress is what a member has done so far.
type progress struct {
	written, said uint64 // the epochs in which it last wrote and last reported
	saidAt        time.Time
}

func (d *dispute) step(ctx context.Context, p *client.Phone, rng *rand.Rand, i int, so *progress) {
	r, returned := Must2(p.Follow(ctx, d.convo, rng))
	if returned {
		d.stuck.Add(1)
		d.attempts.Add(int32(r.Attempts))
		if r.Disputed {
			d.disputed.Add(1)
		}
	}
	group := Must(p.Group(d.convo))
	epoch := group.Epoch()
	if epoch != so.said || time.Since(so.saidAt) > sayEvery {
		so.said, so.saidAt = epoch, time.Now()
		d.say(ctx, p)
	}
	if epoch == so.written || i%5 != 0 {
		return
	}
	so.written = epoch
	d.write(ctx, p)
}

// say reports the member's epoch. The first member that hears of the dispute tries an ordinary
// commit.
func (d *dispute) say(ctx context.Context, p *client.Phone) {
	report, err := p.ReportEpoch(ctx, d.convo)
	if xrpc.ErrorName(err) == mlsapi.ErrInvalidGroupInfo {
		return
	}
	if err != nil || !report.Disputed || d.tried.Swap(true) {
		Check(err)
		return
	}
	d.tryCommit(ctx, p)
}

// write sends a message. If the epoch moves first, the phone reads on and sends the message again.
// While it reads, it may find that it cannot follow.
func (d *dispute) write(ctx context.Context, p *client.Phone) {
	text := fmt.Sprintf("message %d, by %s", d.texts.Add(1), p.Name)
	err := p.Send(ctx, d.convo, text)
	if failed := new(client.CommitError); errors.As(err, &failed) {
		return // the phone follows in its next step
	}
	Check(err)
}

// tryCommit makes an ordinary commit. The dispute must refuse the commit, unless the epoch has
// moved or the dispute has ended meanwhile.
func (d *dispute) tryCommit(ctx context.Context, p *client.Phone) {
	draft := Must(p.DraftCommit(d.convo, mlsclient.Change{}))
	_, err := p.Deliver(ctx, draft)
	switch xrpc.ErrorName(err) {
	case mlsapi.ErrConvoDisputed:
		d.refused.Store(true)
		return
	case mlsapi.ErrEpochMismatch:
		return
	}
	Check(err)
}

// agree reports whether all honest members have the same authenticator, in the epoch of the garbage
// or a later epoch.
func (d *dispute) agree(locks []sync.Mutex) bool {
	var first []byte
	for i, p := range d.honest {
		locks[i].Lock()
		thread, group, err := p.Open(d.convo)
		var authenticator []byte
		if err == nil && !thread.Stuck && group.Epoch() >= d.epoch {
			authenticator = group.Authenticator()
		}
		locks[i].Unlock()
		if authenticator == nil || first != nil && !bytes.Equal(first, authenticator) {
			return false
		}
		first = authenticator
	}
	return true
}

// kept checks that a phone still has what it read before the garbage, even if it came back by
// external commit. The final checks look at later messages.
func (d *dispute) kept(p *client.Phone) {
	items := Must(p.Inbox(d.convo))
	for _, by := range d.honest[:2] {
		text := "before, by " + by.Name
		if !slices.ContainsFunc(items, func(item history.Item) bool { return item.Text == text }) {
			d.w.Report(history.Violation{Kind: history.Lost, Convo: d.convo, Who: p.Name,
				What: fmt.Sprintf("%q, which it had read or could read", text)})
		}
	}
}

// finish lets every member write once more, and checks what each member has read.
func (d *dispute) finish(ctx context.Context, took time.Duration) {
	if took > convergeWithin {
		d.w.Broken("%d members needed %s to be in one epoch again, want at most %s", len(d.honest)+1, took, convergeWithin)
	}
	rng := rand.New(rand.NewPCG(d.w.Seed, 1<<32))
	for _, p := range append([]*client.Phone{d.mallory}, d.honest...) {
		// Mallory's own group can be on another branch, if the GroupInfo of the garbage was unusable.
		if _, _, err := p.Follow(ctx, d.convo, rng); err != nil && xrpc.ErrorName(err) != mlsapi.ErrConvoDisputed {
			Check(err)
		}
	}
	for _, p := range d.honest {
		Check(p.Send(ctx, d.convo, "together again, "+p.Name))
	}
	for _, p := range d.honest {
		d.kept(p)
	}
	view := Must(d.honest[0].Convo(ctx, d.convo))
	d.w.Note("%d members, %d could not process the commit, GroupInfo unusable: %t; one epoch after %s, %d external "+
		"commits tried, %d epochs, %d learned of the dispute, an ordinary commit refused: %t",
		len(d.honest)+1, d.stuck.Load(), d.badInfo, took.Round(time.Millisecond), d.attempts.Load(),
		uint64(view.Epoch)-d.epoch, d.disputed.Load(), d.refused.Load())
}
