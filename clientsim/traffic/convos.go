package traffic

import (
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// This file makes convos, messages, commits and changes of rosters.

// Convo is a convo with two writers and some listeners.
type Convo struct {
	ID      string
	Creator *xrpc.Account // writers[0]

	group   []byte
	writers []*xrpc.Account
	steady  bool // the convo's roster does not change
	log     *client.LogReader
	// A change of the epoch or the roster locks mu for writing. Senders lock mu for reading, so that
	// it is known who must see a message. In a steady convo, senders do not lock mu.
	mu                  sync.RWMutex
	epoch               atomic.Uint64
	members, nonMembers []*Listener
}

// pendingSend is a message whose sender did not wait for an answer.
type pendingSend struct {
	to   *Convo
	from *xrpc.Account
	sent history.Sent
	call xrpc.Call
	// clashes is set if another message has the same idempotency key.
	clashes bool
}

// create makes a convo of two writers and some listeners.
func (t *Traffic) create(ctx context.Context, rng *rand.Rand, steady bool) {
	order := rng.Perm(len(t.Writers))
	r := &Convo{steady: steady, writers: []*xrpc.Account{t.Writers[order[0]], t.Writers[order[1]]}}
	others := slices.Clone(r.writers[1:])
	for i, at := range rng.Perm(len(t.Listeners)) {
		if i < 3 {
			r.members = append(r.members, t.Listeners[at])
			others = append(others, t.Listeners[at].Account)
		} else if i < 6 {
			r.nonMembers = append(r.nonMembers, t.Listeners[at])
		}
	}
	dids := testbed.DIDsOf(others)
	r.Creator, r.group = r.writers[0], mlsclient.RandomBytes(16)
	call := xrpc.CreateCall(r.group, t.w.Suite, dids, &mlsclient.Staged{}, xrpc.NewKey())
	out := Must(ask[mlsapi.CreateConvoOutput](ctx, t.calls, rng, r.Creator, call))
	r.ID, r.log = out.ID, client.NewLogReader(r.Creator, out.ID)
	t.Model.Created(r.ID, r.group, 0, false, r.Creator.DID, dids)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.convos = append(t.convos, r)
}

// message makes a message of one of the convo's writers. Some messages have no idempotency key. The
// server must store the bytes of such a message once.
func (t *Traffic) message(rng *rand.Rand, r *Convo) pendingSend {
	key := xrpc.NewKey()
	if t.o.Rough && rng.IntN(6) == 0 {
		key = ""
	}
	return t.messageOf(rng, r, r.writers[rng.IntN(len(r.writers))], key)
}

// messageOf makes a message, and records that it is about to be sent.
func (t *Traffic) messageOf(rng *rand.Rand, r *Convo, from *xrpc.Account, key string) pendingSend {
	epoch := r.epoch.Load()
	size := 100 + rng.IntN(200)
	if !t.o.Small && rng.IntN(50) == 0 {
		size = 40 << 10
	}
	body := mlsclient.FakeMessage(r.group, epoch, size)
	d := history.DigestOf(body)
	text := hex.EncodeToString(d[:8])
	if t.o.Judged {
		t.Model.Attempted(r.ID, text, d)
	}
	return pendingSend{
		to: r, from: from, sent: history.Sent{Text: text, Sender: from.DID, Digest: d, Epoch: epoch},
		call: xrpc.SendCall(r.ID, from.DID, epoch, body, key),
	}
}

// deliver sends a message until it has a verdict.
func (t *Traffic) deliver(ctx context.Context, rng *rand.Rand, m pendingSend) {
	answer, err := t.calls.do(ctx, rng, m.from, m.call)
	overtaken := xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch && m.to.steady
	if overtaken || xrpc.ErrorName(err) == mlsapi.ErrIdempotencyConflict && m.clashes {
		t.Model.Refused(m.to.ID, m.sent.Digest)
		return
	}
	Check(err)
	out := Must(xrpc.Decode[mlsapi.SendMessageOutput](answer.Body))
	m.sent.ID, m.sent.Seq = out.MessageID, *out.Seq
	t.Sent.Add(1)
	switch {
	case t.o.Acked != nil:
		t.o.Acked(m.to.ID, m.sent)
	case !t.o.Judged:
		if t.Model.History.Entry(m.to.ID, m.sent.Seq, m.sent.Entry()) {
			t.w.Broken("two entries were acknowledged at seq %d of convo %s", m.sent.Seq, m.to.ID)
		}
	default:
		if _, err := t.Model.Acked(m.to.ID, m.sent); err != nil {
			t.w.Report(history.Violation{Kind: history.Duplicated, Convo: m.to.ID, What: err.Error()})
		}
	}
}

// Send sends a message by one of the writers of a random convo.
func (t *Traffic) Send(ctx context.Context, rng *rand.Rand) {
	r := t.some(rng)
	if !r.steady {
		r.mu.RLock()
		defer r.mu.RUnlock()
	}
	begun := time.Now()
	t.deliver(ctx, rng, t.message(rng, r))
	took := int64(time.Since(begun))
	for old := t.LongestSend.Load(); took > old && !t.LongestSend.CompareAndSwap(old, took); old = t.LongestSend.Load() {
	}
}

// clash sends messages with the same idempotency key at once. The server accepts at most one of
// them. A message can take the key while the COMMIT of another message is lost.
func (t *Traffic) clash(ctx context.Context, rng *rand.Rand) {
	const messages = 3
	r := t.some(rng)
	if !r.steady {
		r.mu.RLock()
		defer r.mu.RUnlock()
	}
	from, key := r.writers[rng.IntN(len(r.writers))], xrpc.NewKey()
	var all []func()
	for i := range messages {
		m, own := t.messageOf(rng, r, from, key), rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		m.clashes = true
		all = append(all, func() { Check(t.try(func() { t.deliver(ctx, own, m) })) })
	}
	AtOnce(all...)
}

// abandon sends a message to a steady convo, and does not wait for the answer. Resolve asks for the
// verdict in the end.
func (t *Traffic) abandon(ctx context.Context, rng *rand.Rand) {
	r := t.some(rng)
	if !r.steady {
		return
	}
	m := t.message(rng, r)
	moment, cancel := context.WithTimeout(ctx, Between(rng, time.Millisecond, 30*time.Millisecond))
	defer cancel()
	// Resolve learns the outcome.
	_, _ = t.calls.attempt(moment, rng, rng.IntN(len(t.calls.nodes)), m.from, m.call, nil)
	t.abandonedMu.Lock()
	defer t.abandonedMu.Unlock()
	t.abandoned = append(t.abandoned, m)
}

// Change changes a roster or an epoch.
func (t *Traffic) Change(ctx context.Context, rng *rand.Rand) {
	t.Changes.Add(1)
	if rng.IntN(20) == 0 && (t.o.MaxConvos == 0 || len(t.Convos()) < t.o.MaxConvos) {
		t.create(ctx, rng, false)
		return
	}
	r := t.some(rng)
	r.mu.Lock()
	defer r.mu.Unlock()
	if rng.IntN(10) < t.o.Roles && !r.steady {
		if rng.IntN(6) == 0 && len(r.members) > 1 {
			t.abdicate(ctx, rng, r)
		} else {
			t.changeRole(ctx, rng, r)
		}
		return
	}
	switch n := rng.IntN(8); {
	case n < 2 && len(r.members) > 1 && !r.steady:
		t.leave(ctx, rng, r, take(rng, &r.members))
	case n < 4 && len(r.members) > 1 && !r.steady:
		t.remove(ctx, rng, r)
	case n < 7 && len(r.nonMembers) > 0 && !r.steady:
		t.add(ctx, rng, r)
	default:
		t.commit(ctx, rng, r, r.fakeCommit(), r.writers[0])
	}
}

// race makes both writers commit in the same epoch at once. One of them wins.
func (t *Traffic) race(ctx context.Context, rng *rand.Rand) {
	r := t.some(rng)
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []func()
	before := r.epoch.Load()
	for i, by := range r.writers {
		s, own := r.fakeCommit(), rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		all = append(all, func() { Check(t.try(func() { t.commit(ctx, own, r, s, by) })) })
	}
	AtOnce(all...)
	if after := r.epoch.Load(); after != before+1 {
		t.w.Broken("two commits in epoch %d of convo %s: the epoch is %d", before, r.ID, after)
	}
}

// fakeCommit is a fake commit in the present epoch.
func (r *Convo) fakeCommit() *mlsclient.Staged {
	epoch := r.epoch.Load()
	return &mlsclient.Staged{Epoch: epoch + 1, Commit: mlsclient.FakeCommit(r.group, epoch, 200)}
}

// commit submits a commit. The server refuses the commit if another commit came first.
func (t *Traffic) commit(ctx context.Context, rng *rand.Rand, r *Convo, s *mlsclient.Staged, by *xrpc.Account) {
	err := Attempt(func() { t.committed(ctx, rng, r, s, by, xrpc.SubmitCall(r.ID, s, xrpc.NewKey())) })
	if xrpc.ErrorName(err) != mlsapi.ErrEpochMismatch {
		Check(err)
	}
}

// committed makes a call that commits, and returns the commit's seq. The answers of the methods
// that commit have the same fields.
func (t *Traffic) committed(ctx context.Context, rng *rand.Rand, r *Convo, s *mlsclient.Staged, by *xrpc.Account,
	call xrpc.Call) (seq int64) {
	d := history.DigestOf(s.Commit)
	t.Model.AttemptedCommit(r.ID, d, history.Commit{Sender: by.DID, Epoch: s.Epoch})
	begun, from := t.epochs.now(), int64(s.Epoch)-1
	answer, err := t.calls.do(ctx, rng, by, call)
	var named *xrpc.CallError
	if errors.As(err, &named) {
		t.Model.Refused(r.ID, d)
		if current, ok := named.CurrentEpoch(); ok {
			t.epochs.add(r.ID, begun, epochInput{from}, epochOutput{epoch: int64(current)})
		}
	}
	Check(err)
	out := Must(xrpc.Decode[mlsapi.SubmitCommitOutput](answer.Body))
	t.epochs.add(r.ID, begun, epochInput{from}, epochOutput{committed: true, epoch: out.NewEpoch})
	r.epoch.Store(uint64(out.NewEpoch))
	if err := t.Model.Committed(r.ID, d, out.Seq); err != nil {
		t.w.Report(history.Violation{Kind: history.Duplicated, Convo: r.ID, What: err.Error()})
	}
	return out.Seq
}

// take removes a random element from a list and returns it.
func take(rng *rand.Rand, list *[]*Listener) *Listener {
	i := rng.IntN(len(*list))
	p := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return p
}

// leave makes a member leave, whom the caller has taken from members.
func (t *Traffic) leave(ctx context.Context, rng *rand.Rand, r *Convo, p *Listener) {
	r.nonMembers = append(r.nonMembers, p)
	begun := t.welcomes.now()
	Must(t.calls.do(ctx, rng, p.Account, xrpc.LeaveCall(r.ID, xrpc.NewKey())))
	t.welcomes.add(welcomeOf(r, p), begun, welcomeInput{do: cancel}, nil)
	t.Model.Left(r.ID, p.DID, p.DID, 0)
	t.checkAdmins(ctx, rng, r)
}

// remove makes an admin remove a random member who is not the only admin.
func (t *Traffic) remove(ctx context.Context, rng *rand.Rand, r *Convo) {
	p := take(rng, &r.members)
	by := t.anAdmin(rng, r, p.DID)
	if by == nil {
		r.members = append(r.members, p)
		return
	}
	r.nonMembers = append(r.nonMembers, p)
	s := r.fakeCommit()
	begun := t.welcomes.now()
	seq := t.committed(ctx, rng, r, s, by, xrpc.RemoveCall(r.ID, p.DID, s, xrpc.NewKey()))
	t.welcomes.add(welcomeOf(r, p), begun, welcomeInput{do: cancel}, nil)
	t.Model.Left(r.ID, by.DID, p.DID, seq)
	t.checkAdmins(ctx, rng, r)
}

// add makes the creator add an account, or add a former member again, by a commit with a Welcome.
func (t *Traffic) add(ctx context.Context, rng *rand.Rand, r *Convo) {
	p := take(rng, &r.nonMembers)
	r.members = append(r.members, p)
	dids, s := []syntax.DID{p.DID}, r.fakeCommit()
	s.Welcome = mlsclient.FakeWelcome(t.w.Suite, p.ref)
	begun := t.welcomes.now()
	seq := t.committed(ctx, rng, r, s, r.Creator, xrpc.AddCall(r.ID, dids, s, xrpc.NewKey()))
	t.Model.Joined(r.ID, r.Creator.DID, seq, dids)
	t.welcomes.add(welcomeOf(r, p), begun, welcomeInput{deliver, history.DigestOf(s.Welcome)}, nil)
	t.Model.History.Welcomed(p.DID, r.ID, p.Device, int64(s.Epoch))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.invited = append(t.invited, invited{r, p})
}

// verifyLog lets a member check the log of its convo against the heads that one of the servers
// signs. No fault makes a correct server look like a liar.
func (t *Traffic) verifyLog(ctx context.Context, rng *rand.Rand) {
	r := t.some(rng)
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	checked, err := r.log.Read(ctx, t.cluster.Clients[rng.IntN(len(t.cluster.Clients))])
	Check(errs.Wrap(err, "the log of convo %s", r.ID))
	if checked > 0 {
		t.verified.Add(1)
	}
}

// verifyTimeout bounds one reading of a log. The next reading goes on from there.
const verifyTimeout = 10 * time.Second

// readEpoch asks for the epoch of a convo.
func (t *Traffic) readEpoch(ctx context.Context, rng *rand.Rand) {
	r := t.some(rng)
	begun := t.epochs.now()
	out := Must(ask[mlsapi.GetEpochOutput](ctx, t.calls, rng, r.writers[rng.IntN(2)], xrpc.EpochCall(r.ID)))
	t.epochs.add(r.ID, begun, epochInput{readEpoch}, epochOutput{epoch: out.CurrentEpoch})
}
