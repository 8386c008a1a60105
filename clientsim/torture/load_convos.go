package torture

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// This file makes convos, messages, commits and changes of rosters.

// create makes a convo of two writers and some listeners.
func (l *load) create(ctx context.Context, rng *rand.Rand, steady bool) error {
	order := rng.Perm(len(l.writers))
	r := &convo{group: mlsclient.RandomBytes(16), steady: steady, writers: []*xrpc.Account{l.writers[order[0]], l.writers[order[1]]}}
	others := slices.Clone(r.writers[1:])
	for i, at := range rng.Perm(len(l.listeners)) {
		if i < 3 {
			r.members = append(r.members, l.listeners[at])
			others = append(others, l.listeners[at].Account)
		} else if i < 6 {
			r.nonMembers = append(r.nonMembers, l.listeners[at])
		}
	}
	dids := testbed.DIDsOf(others)
	out, err := ask[mlsapi.CreateConvoOutput](ctx, l.calls, rng, r.writers[0], xrpc.CreateCall(r.group, l.w.Suite, dids, &mlsclient.Staged{}, xrpc.NewKey()))
	if err != nil {
		return l.unexpected(err)
	}
	r.id, r.log = out.ID, client.NewLogReader(r.writers[0], out.ID)
	l.model.Created(r.id, r.group, 0, false, r.writers[0].DID, dids)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.convos = append(l.convos, r)
	return nil
}

// message makes a message of one of the convo's writers. Some have no idempotency key: their bytes
// are what is there once.
func (l *load) message(rng *rand.Rand, r *convo) pendingSend {
	key := xrpc.NewKey()
	if rng.IntN(6) == 0 {
		key = ""
	}
	return l.messageOf(rng, r, r.writers[rng.IntN(len(r.writers))], key)
}

// messageOf makes a message, and records that it is about to be sent.
func (l *load) messageOf(rng *rand.Rand, r *convo, from *xrpc.Account, key string) pendingSend {
	epoch := r.epoch.Load()
	size := 100 + rng.IntN(200)
	if rng.IntN(50) == 0 {
		size = 40 << 10
	}
	body := mlsclient.FakeMessage(r.group, epoch, size)
	d := history.DigestOf(body)
	text := hex.EncodeToString(d[:8])
	l.model.Attempted(r.id, text, d)
	return pendingSend{
		to: r, from: from, sent: history.Sent{Text: text, Sender: from.DID, Digest: d, Epoch: epoch},
		call: xrpc.SendCall(r.id, from.DID, epoch, body, key),
	}
}

// deliver sends a message until it has a verdict.
func (l *load) deliver(ctx context.Context, rng *rand.Rand, m pendingSend) error {
	answer, err := l.calls.do(ctx, rng, m.from, m.call)
	if err != nil {
		// In a steady convo the epoch can have moved.
		if xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch && m.to.steady {
			l.model.Refused(m.to.id, m.sent.Digest)
			return nil
		}
		if xrpc.ErrorName(err) == mlsapi.ErrIdempotencyConflict && m.clashes {
			l.model.Refused(m.to.id, m.sent.Digest)
			return nil
		}
		return l.unexpected(err)
	}
	out, err := xrpc.Decode[mlsapi.SendMessageOutput](answer.Body)
	if err != nil {
		return err
	}
	m.sent.ID, m.sent.Seq = out.MessageID, *out.Seq
	if _, err := l.model.Acked(m.to.id, m.sent); err != nil {
		l.w.Report(history.Violation{Kind: history.Duplicated, Convo: m.to.id, What: err.Error()})
	}
	return nil
}

// send sends a message.
func (l *load) send(ctx context.Context, rng *rand.Rand) error {
	r := l.some(rng)
	if !r.steady {
		r.mu.RLock()
		defer r.mu.RUnlock()
	}
	return l.deliver(ctx, rng, l.message(rng, r))
}

// clash sends messages with the same idempotency key at once. At most one of them is accepted. One
// can take the key while the COMMIT of another one is lost.
func (l *load) clash(ctx context.Context, rng *rand.Rand) error {
	const messages = 3
	r := l.some(rng)
	if !r.steady {
		r.mu.RLock()
		defer r.mu.RUnlock()
	}
	from, key := r.writers[rng.IntN(len(r.writers))], xrpc.NewKey()
	var all sync.WaitGroup
	errs := make([]error, messages)
	for i := range messages {
		m, own := l.messageOf(rng, r, from, key), rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		m.clashes = true
		all.Go(func() { errs[i] = l.deliver(ctx, own, m) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// abandon sends a message to a steady convo, and does not wait for the answer. Its verdict is asked
// for in the end.
func (l *load) abandon(ctx context.Context, rng *rand.Rand) error {
	r := l.some(rng)
	if !r.steady {
		return nil
	}
	m := l.message(rng, r)
	moment, cancel := context.WithTimeout(ctx, between(rng, time.Millisecond, 30*time.Millisecond))
	defer cancel()
	_, _ = l.calls.attempt(moment, rng, m.from, m.call, nil) // resolve learns what became of it
	l.abandonedMu.Lock()
	defer l.abandonedMu.Unlock()
	l.abandoned = append(l.abandoned, m)
	return nil
}

// resolve asks for the verdicts of abandoned messages.
func (l *load) resolve(ctx context.Context) error {
	for _, m := range l.abandoned {
		if err := l.deliver(ctx, l.w.RNG, m); err != nil {
			return err
		}
	}
	return nil
}

// change changes a roster or an epoch.
func (l *load) change(ctx context.Context, rng *rand.Rand) error {
	if rng.IntN(20) == 0 {
		return l.create(ctx, rng, false)
	}
	r := l.some(rng)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch n := rng.IntN(8); {
	case r.steady:
	case n < 2 && len(r.members) > 1:
		return l.leave(ctx, rng, r)
	case n < 4 && len(r.members) > 1:
		return l.remove(ctx, rng, r)
	case n < 7 && len(r.nonMembers) > 0:
		return l.add(ctx, rng, r)
	}
	return l.commit(ctx, rng, r, r.fakeCommit(), r.writers[0], nil)
}

// race makes both writers commit in the same epoch at once. One of them wins.
func (l *load) race(ctx context.Context, rng *rand.Rand) error {
	r := l.some(rng)
	r.mu.Lock()
	defer r.mu.Unlock()
	var all sync.WaitGroup
	errs := make([]error, len(r.writers))
	before := r.epoch.Load()
	for i, by := range r.writers {
		s, own := r.fakeCommit(), rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		all.Go(func() { errs[i] = l.commit(ctx, own, r, s, by, nil) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if after := r.epoch.Load(); after != before+1 {
		l.w.Broken("two commits in epoch %d of convo %s: the epoch is %d", before, r.id, after)
	}
	return nil
}

// fakeCommit is a fake commit in the present epoch.
func (r *convo) fakeCommit() *mlsclient.Staged {
	epoch := r.epoch.Load()
	return &mlsclient.Staged{Epoch: epoch + 1, Commit: mlsclient.FakeCommit(r.group, epoch, 200)}
}

// commit submits a commit. call is its request; nil: submitCommit. A commit that another one has
// overtaken is refused.
func (l *load) commit(ctx context.Context, rng *rand.Rand, r *convo, s *mlsclient.Staged, by *xrpc.Account, call *xrpc.Call) error {
	_, err := l.committed(ctx, rng, r, s, by, call)
	if xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch {
		return nil
	}
	return l.unexpected(err)
}

// committed submits a commit and returns its seq. The answers of the methods that commit have the
// same fields.
func (l *load) committed(ctx context.Context, rng *rand.Rand, r *convo, s *mlsclient.Staged, by *xrpc.Account, call *xrpc.Call) (int64, error) {
	if call == nil {
		submit := xrpc.SubmitCall(r.id, s, xrpc.NewKey())
		call = &submit
	}
	d := history.DigestOf(s.Commit)
	l.model.AttemptedCommit(r.id, d, history.Commit{Sender: by.DID, Epoch: s.Epoch})
	begun, from := l.epochs.now(), int64(s.Epoch)-1
	answer, err := l.calls.do(ctx, rng, by, *call)
	var named *xrpc.CallError
	if errors.As(err, &named) {
		l.model.Refused(r.id, d)
		if current, ok := named.CurrentEpoch(); ok {
			l.epochs.add(r.id, begun, epochInput{from}, epochOutput{epoch: int64(current)})
		}
	}
	if err != nil {
		return 0, err
	}
	out, err := xrpc.Decode[mlsapi.SubmitCommitOutput](answer.Body)
	if err != nil {
		return 0, err
	}
	l.epochs.add(r.id, begun, epochInput{from}, epochOutput{committed: true, epoch: out.NewEpoch})
	r.epoch.Store(uint64(out.NewEpoch))
	if err := l.model.Committed(r.id, d, out.Seq); err != nil {
		l.w.Report(history.Violation{Kind: history.Duplicated, Convo: r.id, What: err.Error()})
	}
	return out.Seq, nil
}

// take removes a random element from a list and returns it.
func take(rng *rand.Rand, list *[]*listener) *listener {
	i := rng.IntN(len(*list))
	p := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return p
}

// leave makes a random member leave.
func (l *load) leave(ctx context.Context, rng *rand.Rand, r *convo) error {
	p := take(rng, &r.members)
	r.nonMembers = append(r.nonMembers, p)
	begun := l.welcomes.now()
	if _, err := l.calls.do(ctx, rng, p.Account, xrpc.LeaveCall(r.id, xrpc.NewKey())); err != nil {
		return l.unexpected(err)
	}
	l.welcomes.add(welcomeOf(r, p), begun, welcomeInput{do: cancel}, nil)
	l.model.Left(r.id, p.DID, p.DID, 0)
	return nil
}

// remove makes the creator remove a random member.
func (l *load) remove(ctx context.Context, rng *rand.Rand, r *convo) error {
	p := take(rng, &r.members)
	r.nonMembers = append(r.nonMembers, p)
	s := r.fakeCommit()
	call := xrpc.RemoveCall(r.id, p.DID, s, xrpc.NewKey())
	begun := l.welcomes.now()
	seq, err := l.committed(ctx, rng, r, s, r.writers[0], &call)
	if err != nil {
		return l.unexpected(err)
	}
	l.welcomes.add(welcomeOf(r, p), begun, welcomeInput{do: cancel}, nil)
	l.model.Left(r.id, r.writers[0].DID, p.DID, seq)
	return nil
}

// add makes the creator add an account, or add a former member again.
func (l *load) add(ctx context.Context, rng *rand.Rand, r *convo) error {
	p := take(rng, &r.nonMembers)
	r.members = append(r.members, p)
	s := r.fakeCommit()
	s.Welcome = mlsclient.FakeWelcome(l.w.Suite, p.ref)
	call := xrpc.AddCall(r.id, []syntax.DID{p.DID}, s, xrpc.NewKey())
	begun := l.welcomes.now()
	seq, err := l.committed(ctx, rng, r, s, r.writers[0], &call)
	if err != nil {
		return l.unexpected(err)
	}
	l.welcomes.add(welcomeOf(r, p), begun, welcomeInput{deliver, history.DigestOf(s.Welcome)}, nil)
	l.model.Joined(r.id, r.writers[0].DID, seq, []syntax.DID{p.DID})
	l.model.History.Welcomed(p.DID, r.id, p.device, int64(s.Epoch))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.invited = append(l.invited, invited{r, p})
	return nil
}

// readEpoch asks for the epoch of a convo.
// verifyLog lets a member check the log of its convo against the heads that one of the servers signs. No
// fault makes a correct server look like a liar.
func (l *load) verifyLog(ctx context.Context, rng *rand.Rand) error {
	r := l.some(rng)
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	checked, err := r.log.Read(ctx, l.cluster.Clients[rng.IntN(len(l.cluster.Clients))])
	if err != nil {
		return fmt.Errorf("the log of convo %s: %w", r.id, err)
	}
	if checked > 0 {
		l.verified.Add(1)
	}
	return nil
}

// verifyTimeout bounds one reading of a log: the next one goes on.
const verifyTimeout = 10 * time.Second

func (l *load) readEpoch(ctx context.Context, rng *rand.Rand) error {
	r := l.some(rng)
	begun := l.epochs.now()
	out, err := ask[mlsapi.GetEpochOutput](ctx, l.calls, rng, r.writers[rng.IntN(2)], xrpc.EpochCall(r.id))
	if err != nil {
		return l.unexpected(err)
	}
	l.epochs.add(r.id, begun, epochInput{readEpoch}, epochOutput{epoch: out.CurrentEpoch})
	return nil
}
