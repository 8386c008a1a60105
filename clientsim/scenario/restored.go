package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

const (
	restoredConvos = 3
	restoredTexts  = 12  // messages of each phone
	maxRounds      = 100 // calls of MakeGood of each phone until it waits for nothing
)

// RestoredBackup restores the server to a moment at which clients were writing. The server loses
// messages, commits, joins and leaves that it had acknowledged. Afterwards the clients send again
// what they keep. Some devices come back later, and one never does.
func RestoredBackup(ctx context.Context, w *testbed.World) {
	r := &restored{w: w}
	r.makeGroups(ctx)
	w.Progress("making a backup")
	backups := Must(w.NewBackups(ctx))
	to := Must(r.busy(ctx))
	w.Progress("restoring the backup")
	Check(backups.Restore(ctx, to))
	r.afterwards(ctx)
}

// RestoredBackrest is RestoredBackup with a PostgreSQL whose backups pgBackRest makes. PostgreSQL
// is restored into another directory, and the server must notice the restore by itself.
func RestoredBackrest(ctx context.Context, w *testbed.World) {
	r := &restored{w: w}
	database := Must(w.NewBackrest(ctx))
	r.makeGroups(ctx)
	w.Progress("making a backup")
	Check(database.Backup(ctx))
	to := Must(r.busy(ctx))
	w.Progress("restoring the backup")
	Check(database.Restore(ctx, to))
	r.afterwards(ctx)
}

func (r *restored) makeGroups(ctx context.Context) {
	for i := range restoredConvos {
		r.makeGroup(ctx, i)
	}
}

// afterwards lets the clients make good the lost writes, and judges the result.
func (r *restored) afterwards(ctx context.Context) {
	w, lost := r.w, 0
	for _, c := range w.Model.Snapshot() {
		lost += c.Gone.Count()
	}
	if lost == 0 {
		w.Broken("the scenario itself: the restore has lost nothing")
	}
	for number, g := range r.groups {
		before := r.anew + r.rejoined
		Check(errs.Wrap(r.makeGood(ctx, g, g.reconnecting(false)), "convo %s", g.convo))
		if n := r.anew + r.rejoined - before; n > 0 && number > 0 {
			w.Broken("convo %s waits for no late commit, and still %d writes did not come back byte for byte", g.convo, n)
		}
		Check(errs.Wrap(r.makeGood(ctx, g, g.reconnecting(true)), "convo %s, the late devices", g.convo))
		Check(g.creator().CommitRemovals(ctx, g.convo))
		Check(r.w.SyncAll(ctx, g.convo, append(g.writers, g.late, g.joiner)...))
	}
	r.judge(lost)
	r.claimAll(ctx)
}

// claimAll claims the KeyPackages of the phones that joined. After the restore, the server must not
// hand out a used KeyPackage.
func (r *restored) claimAll(ctx context.Context) {
	for _, g := range r.groups {
		used := g.joiner.UsedRef(g.convo)
		for range 3 {
			out := Must(g.creator().ClaimAny(ctx,
				xrpc.ClaimCall([]syntax.DID{g.joiner.Account.DID}, r.w.Suite, g.convo, xrpc.NewKey())))
			for _, kp := range out.KeyPackages {
				if kp.KeyPackageRef == nil || *kp.KeyPackageRef == used {
					r.w.Broken("a used KeyPackage of %s is handed out again", g.joiner.Name)
				}
			}
		}
	}
}

// restored is a run of the scenario.
type restored struct {
	w      *testbed.World
	groups []*restoredGroup

	same, anew, rejoined int // what MakeGood did
}

// restoredGroup is one convo, and its devices by what they do.
type restoredGroup struct {
	convo   string
	writers []*client.Phone // the first is the creator
	late    *client.Phone   // reconnects after the others
	never   *client.Phone   // does not reconnect
	leaver  *client.Phone   // leaves at the end
	joiner  *client.Phone   // joins after the moment of the restore
}

func (g *restoredGroup) creator() *client.Phone { return g.writers[0] }

// reconnecting returns the phones that reconnect first, and with late also the late phone.
func (g *restoredGroup) reconnecting(late bool) []*client.Phone {
	phones := append([]*client.Phone{g.leaver, g.joiner}, g.writers...)
	if late {
		phones = append(phones, g.late)
	}
	return phones
}

func (r *restored) makeGroup(ctx context.Context, i int) {
	phones, convo := Must2(r.w.Convo(ctx, 6))
	joiners := Must(r.w.Phones(ctx, 1))
	g := &restoredGroup{convo: convo, writers: phones[:3], late: phones[3], never: phones[4], leaver: phones[5],
		joiner: joiners[0]}
	r.groups = append(r.groups, g)
}

// busy makes all phones write at once, and returns a moment while they write.
func (r *restored) busy(ctx context.Context) (to time.Time, err error) {
	var before, after sync.WaitGroup
	passed := make(chan struct{}) // closed at the moment
	var mu sync.Mutex             // guards errs
	var errs []error
	for number, g := range r.groups {
		for _, p := range append(g.reconnecting(true)[2:], g.never, g.leaver) {
			rng := rand.New(rand.NewPCG(r.w.RNG.Uint64(), 0))
			before.Add(1)
			after.Go(func() {
				err := Attempt(func() { r.write(ctx, g, p, 0, rng) })
				before.Done()
				<-passed
				if err == nil {
					err = Attempt(func() {
						r.write(ctx, g, p, 1, rng)
						r.change(ctx, g, p, number)
					})
				}
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
	}
	before.Wait()
	to = time.Now()
	close(passed)
	after.Wait()
	return to, errors.Join(errs...)
}

// write sends one half of a phone's messages, and now and then rotates its keys.
func (r *restored) write(ctx context.Context, g *restoredGroup, p *client.Phone, half int, rng *rand.Rand) {
	for i := range restoredTexts / 2 {
		Check(p.Send(ctx, g.convo, fmt.Sprintf("%s, %d.%d", p.Name, half, i)))
		if rng.IntN(8) == 0 && p != g.never && p != g.late {
			Check(p.Rotate(ctx, g.convo))
		}
	}
	Check(p.Sync(ctx, g.convo))
}

// change makes the phone's change of the group, which the server loses.
func (r *restored) change(ctx context.Context, g *restoredGroup, p *client.Phone, number int) {
	switch {
	case p == g.writers[1]:
		Check(p.Add(ctx, g.convo, g.joiner.Account.DID))
		Check(g.joiner.Join(ctx, g.convo))
		Check(g.joiner.Send(ctx, g.convo, g.joiner.Name+" is here"))
		return
	case p == g.leaver:
		Check(p.Leave(ctx, g.convo))
		return
	case p == g.late && number == 0: // the others wait for this commit, and then go on without it
		Check(p.Rotate(ctx, g.convo))
		return
	}
}

// makeGood lets phones make good the lost writes, until no phone waits for anything. The phones
// wait for each other as long as a phone makes progress.
func (r *restored) makeGood(ctx context.Context, g *restoredGroup, phones []*client.Phone) (err error) {
	defer Catch(&err)
	for _, p := range phones {
		Check(p.MakeGoodPackages(ctx))
	}
	phase, waiting := client.ResendMessages, ""
	for range maxRounds {
		progress := false
		waiting = ""
		for _, p := range phones {
			got := Must(p.MakeGood(ctx, g.convo, phase))
			r.same, r.anew = r.same+got.Same, r.anew+got.Anew
			if got.Rejoined {
				r.rejoined++
			}
			if got.Waiting != "" {
				waiting = p.Name + " waits for " + got.Waiting
			}
			if got.Progress() { // the log has grown: messages come first again
				progress, phase = true, client.ResendMessages
			}
		}
		switch {
		case progress:
		case waiting == "":
			return nil
		case phase < client.WriteAnew:
			phase++
		default:
			return errors.New(waiting)
		}
	}
	return fmt.Errorf("after %d rounds, %s", maxRounds, waiting)
}

// judge checks that the lost writes came back. Devices that never come back are taken out.
func (r *restored) judge(lost int) {
	never, late := map[syntax.DID]bool{}, map[syntax.DID]bool{}
	for _, g := range r.groups {
		never[g.never.Account.DID], late[g.late.Account.DID] = true, true
		r.w.Retire(g.never)
	}
	r.w.CheckRestored(func(did syntax.DID) bool { return never[did] }, func(did syntax.DID) bool { return late[did] })
	named := 0
	for _, c := range r.w.Model.Snapshot() {
		named += len(c.Gone.Sent) + len(c.Gone.Left)
	}
	r.w.Note("the restore lost %d writes: %d came back byte for byte, %d were made anew, %d cannot come back; %d rejoins",
		lost, r.same, r.anew, named, r.rejoined)
}
