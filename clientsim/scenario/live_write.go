package scenario

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/load"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// write sends until writing ends. Each writer sends one message after the other. With a rate, all
// writers together start that many a second, whether or not earlier ones are answered.
func (b *liveRun) write(ctx, writing context.Context) {
	d := load.Driver{Rate: float64(b.w.Rate), Lanes: orDefault(b.w.Writers, liveWriters)}
	if d.Rate > 0 {
		d.Lanes = max(d.Lanes, mostInFlight)
	}
	var behind sync.Once
	check(d.Try(writing, b.w.Seed, func(r load.Request, rng *rand.Rand) error {
		if time.Since(r.Due) > time.Second {
			behind.Do(func() { b.w.Note("at %d a second the servers fell a second behind", b.w.Rate) })
		}
		return attempt(func() { b.send(ctx, rng, b.some(rng)) })
	}))
}

// mostInFlight is the largest number of unanswered messages at a given rate.
const mostInFlight = 512

// send sends a message by one of a convo's writers, until it is acknowledged.
func (b *liveRun) send(ctx context.Context, rng *rand.Rand, r *liveConvo) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	sender := r.writers[rng.IntN(len(r.writers))]
	size := 100 + rng.IntN(200)
	if !b.w.Calm && rng.IntN(50) == 0 {
		size = 40 << 10
	}
	body := mlsclient.FakeMessage(r.group, r.epoch, size)
	begun := time.Now()
	answer := must(b.cluster.Do(ctx, rng, sender, xrpc.SendCall(r.id, sender.DID, r.epoch, body, xrpc.NewKey())))
	raise(&b.longestSend, int64(time.Since(begun)))
	out := must(xrpc.Decode[mlsapi.SendMessageOutput](answer.Body))
	b.sends.Add(1)
	b.acknowledged(r, *out.Seq, history.DigestEntry(false, out.MessageID, sender.DID.String(), int64(r.epoch), sha256.Sum256(body)))
}

// raise sets a maximum.
func raise(most *atomic.Int64, n int64) {
	for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
	}
}

func (b *liveRun) acknowledged(r *liveConvo, seq int64, m history.EntryDigest) {
	if b.onSent != nil {
		b.onSent(r.id, seq, m)
		return
	}
	if b.history.Entry(r.id, seq, m) {
		fail("two entries were acknowledged at seq %d of convo %s", seq, r.id)
	}
}

// changeRosters changes rosters and epochs, one after the other, until writing ends.
func (b *liveRun) changeRosters(ctx, writing context.Context, length time.Duration) {
	rng := rand.New(rand.NewPCG(b.w.Seed, 0x57112))
	pause := orDefault(b.pause, max(length/400, 10*time.Millisecond))
	for writing.Err() == nil {
		b.change(ctx, rng)
		b.changes.Add(1)
		xrpc.Sleep(writing, time.Duration(rng.Int64N(int64(2*pause))))
	}
}

func (b *liveRun) change(ctx context.Context, rng *rand.Rand) {
	if rng.IntN(8) == 0 && !b.full() {
		check(b.open(ctx, rng))
		return
	}
	r := b.some(rng)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch n := rng.IntN(8); {
	case n < 3 && len(r.members) > 1:
		b.leave(ctx, rng, r)
		return
	case n < 5 && len(r.members) > 1:
		b.remove(ctx, rng, r)
		return
	case n < 7 && len(r.nonMembers) > 0:
		b.bring(ctx, rng, r)
		return
	}
	b.rotate(ctx, rng, r)
}

// full reports whether there are as many convos as there may be.
func (b *liveRun) full() bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.mostConvos > 0 && len(b.convos) >= b.mostConvos
}

// pick removes a random element from a list and returns it.
func pick(rng *rand.Rand, list *[]*listener) *listener {
	i := rng.IntN(len(*list))
	p := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return p
}

// leave makes a random member leave.
func (b *liveRun) leave(ctx context.Context, rng *rand.Rand, r *liveConvo) {
	p := pick(rng, &r.members)
	r.nonMembers = append(r.nonMembers, p)
	must(b.cluster.Do(ctx, rng, p.Account, xrpc.LeaveCall(r.id, xrpc.NewKey())))
	b.history.Left(r.id, mlsapi.MembershipEventChangeLeft, p.DID, p.DID, b.history.End(r.id))
}

// fakeCommit is a fake commit by the creator, in a PrivateMessage.
func (r *liveConvo) fakeCommit(refs [][]byte, suite mlsclient.Suite) *mlsclient.Staged {
	s := &mlsclient.Staged{Epoch: r.epoch + 1, Commit: mlsclient.FakeCommit(r.group, r.epoch, 200)}
	if refs != nil {
		s.Welcome = mlsclient.FakeWelcome(suite, refs...)
	}
	return s
}

// committed records that the creator's commit was accepted.
func (b *liveRun) committed(r *liveConvo, s *mlsclient.Staged, epoch, seq int64) {
	if epoch != int64(s.Epoch) {
		fail("a commit led to epoch %d, want %d", epoch, s.Epoch)
	}
	r.epoch = s.Epoch
	b.acknowledged(r, seq, history.DigestEntry(true, "", r.writers[0].DID.String(), epoch, sha256.Sum256(s.Commit)))
}

func (b *liveRun) remove(ctx context.Context, rng *rand.Rand, r *liveConvo) {
	p := pick(rng, &r.members)
	r.nonMembers = append(r.nonMembers, p)
	s := r.fakeCommit(nil, b.w.Suite)
	answer := must(b.cluster.Do(ctx, rng, r.writers[0], xrpc.RemoveCall(r.id, p.DID, s, xrpc.NewKey())))
	out := must(xrpc.Decode[mlsapi.LeaveConvoOutput](answer.Body))
	b.committed(r, s, out.NewEpoch, *out.Seq)
	b.history.Left(r.id, mlsapi.MembershipEventChangeRemoved, r.writers[0].DID, p.DID, *out.Seq)
}

// bring adds an account, or adds a former member again.
func (b *liveRun) bring(ctx context.Context, rng *rand.Rand, r *liveConvo) {
	p := pick(rng, &r.nonMembers)
	r.members = append(r.members, p)
	b.admit(ctx, rng, r, p)
}

// admit adds accounts to a convo by a commit with a Welcome.
func (b *liveRun) admit(ctx context.Context, rng *rand.Rand, r *liveConvo, people ...*listener) {
	var accounts []*xrpc.Account
	var refs [][]byte
	for _, p := range people {
		accounts, refs = append(accounts, p.Account), append(refs, p.ref)
	}
	s := r.fakeCommit(refs, b.w.Suite)
	answer := must(b.cluster.Do(ctx, rng, r.writers[0], xrpc.AddCall(r.id, testbed.DIDsOf(accounts), s, xrpc.NewKey())))
	out := must(xrpc.Decode[mlsapi.AddMembersOutput](answer.Body))
	b.committed(r, s, out.NewEpoch, *out.Seq)
	b.history.Joined(r.id, r.writers[0].DID, *out.Seq, testbed.DIDsOf(accounts)...)
	for _, p := range people {
		b.history.Welcomed(p.DID, r.id, p.device, out.NewEpoch)
	}
}

// rotate makes a commit that changes no member.
func (b *liveRun) rotate(ctx context.Context, rng *rand.Rand, r *liveConvo) {
	s := r.fakeCommit(nil, b.w.Suite)
	answer := must(b.cluster.Do(ctx, rng, r.writers[0], xrpc.SubmitCall(r.id, s, xrpc.NewKey())))
	out := must(xrpc.Decode[mlsapi.SubmitCommitOutput](answer.Body))
	b.committed(r, s, out.NewEpoch, out.Seq)
}

// create makes a convo and returns its id.
func (b *liveRun) create(ctx context.Context, rng *rand.Rand, by *xrpc.Account, call xrpc.Call) (string, error) {
	answer, err := b.cluster.Do(ctx, rng, by, call)
	if err != nil {
		return "", err
	}
	out, err := xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body)
	if err != nil {
		return "", err
	}
	return out.ID, nil
}

// injectFaults kills the leader, restarts the database, and kills the next leader.
func (b *liveRun) injectFaults(ctx, writing context.Context, length time.Duration) error {
	for _, step := range []struct {
		name string
		do   func(context.Context)
	}{
		{"the leader was killed", b.killLeader},
		{"PostgreSQL was restarted", b.restartDatabase},
		{"the leader was killed again", b.killLeader},
	} {
		xrpc.Sleep(writing, length/6)
		if writing.Err() != nil {
			b.w.Note("there was no time until %s", step.name)
			return nil
		}
		b.w.Progress(step.name)
		if err := attempt(func() { step.do(ctx) }); err != nil {
			return err
		}
		select {
		case after := <-b.after:
			b.w.Note("%s: the next event came %s later", step.name, after.Round(time.Millisecond))
		case <-writing.Done(): // on a busy machine the faults can take as long as the writers write
			b.w.Note("%s: the writers ended before the next event", step.name)
			return nil
		case <-time.After(xrpc.CallTimeout):
			return fmt.Errorf("%s, and no event came for %s", step.name, xrpc.CallTimeout)
		}
	}
	return nil
}

func (b *liveRun) killLeader(ctx context.Context) {
	leader := must(b.cluster.Leader(ctx))
	b.began.Store(time.Now().UnixNano())
	check(leader.Kill())
	b.done.Store(time.Now().UnixNano())
	// The other server is alone for a while.
	xrpc.Sleep(ctx, time.Second/2)
	check(leader.Start(ctx, nil))
}

func (b *liveRun) restartDatabase(ctx context.Context) {
	b.began.Store(time.Now().UnixNano())
	check(b.cluster.Postgres.Stop())
	b.done.Store(time.Now().UnixNano())
	check(b.cluster.Postgres.Start(ctx))
}
