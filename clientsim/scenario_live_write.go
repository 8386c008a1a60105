package clientsim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"mlsd/api/mlsapi"
)

// write sends until writing ends: each writer one message after the other, or so many a second in all, whatever has become of those
// before.
func (b *broadcast) write(ctx, writing context.Context) error {
	lanes := orDefault(b.w.Writers, liveWriters)
	var tickets chan struct{}
	if b.w.Rate > 0 {
		lanes = max(lanes, mostInFlight)
		tickets = make(chan struct{}, lanes)
		go b.pace(writing, tickets)
	}
	var all sync.WaitGroup
	errs := make([]error, lanes)
	for lane := range lanes {
		rng := rand.New(rand.NewPCG(b.w.Seed, uint64(lane)))
		all.Go(func() {
			for writing.Err() == nil && errs[lane] == nil {
				if tickets != nil {
					if _, ok := <-tickets; !ok {
						return
					}
				}
				errs[lane] = b.send(ctx, rng, b.some(rng))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// mostInFlight bounds the messages under way at a given rate.
const mostInFlight = 512

// pace hands out as many tickets a second as messages are to be sent.
func (b *broadcast) pace(writing context.Context, tickets chan<- struct{}) {
	defer close(tickets)
	start, tick := time.Now(), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var behind bool
	for n := 0; ; {
		select {
		case <-writing.Done():
			return
		case <-tick.C:
		}
		for due := int(time.Since(start).Seconds() * float64(b.w.Rate)); n < due; n++ {
			select {
			case tickets <- struct{}{}:
			default:
				if !behind {
					behind = true
					b.w.Note("at %d a second the servers fell behind after %s", b.w.Rate, time.Since(start).Round(time.Millisecond))
				}
				select {
				case tickets <- struct{}{}:
				case <-writing.Done():
					return
				}
			}
		}
	}
}

// send sends a message by one of a room's writers, until it is acknowledged.
func (b *broadcast) send(ctx context.Context, rng *rand.Rand, r *room) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	sender := r.writers[rng.IntN(len(r.writers))]
	size := 100 + rng.IntN(200)
	if !b.w.Calm && rng.IntN(50) == 0 {
		size = 40 << 10
	}
	body := hollowPrivate(hollowMessage, r.group, r.epoch, size)
	answer, err := b.f.do(ctx, rng, sender, sendCall(r.id, sender.DID, r.epoch, body, newKey()))
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeSendMessageOutput(answer.Body)
	if err != nil {
		return err
	}
	b.sends.Add(1)
	return b.acknowledged(r, *out.Seq, markOf(false, out.MessageID, sender.DID.String(), int64(r.epoch), sha256.Sum256(body)))
}

func (b *broadcast) acknowledged(r *room, seq int64, m mark) error {
	if b.chronicle.Entry(r.id, seq, m) {
		return fmt.Errorf("two entries were acknowledged at seq %d of convo %s", seq, r.id)
	}
	return nil
}

// stir changes rosters and epochs, one after the other, until writing ends.
func (b *broadcast) stir(ctx, writing context.Context, length time.Duration) error {
	rng := rand.New(rand.NewPCG(b.w.Seed, 0x57112))
	pause := max(length/400, 10*time.Millisecond)
	for writing.Err() == nil {
		if err := b.change(ctx, rng); err != nil {
			return err
		}
		b.changes.Add(1)
		sleep(writing, time.Duration(rng.Int64N(int64(2*pause))))
	}
	return nil
}

func (b *broadcast) change(ctx context.Context, rng *rand.Rand) error {
	if rng.IntN(8) == 0 {
		return b.open(ctx, rng)
	}
	r := b.some(rng)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch n := rng.IntN(8); {
	case n < 3 && len(r.in) > 1:
		return b.leave(ctx, rng, r)
	case n < 5 && len(r.in) > 1:
		return b.remove(ctx, rng, r)
	case n < 7 && len(r.out) > 0:
		return b.bring(ctx, rng, r)
	}
	return b.rotate(ctx, rng, r)
}

// pick takes one out of a list.
func pick(rng *rand.Rand, list *[]*person) *person {
	i := rng.IntN(len(*list))
	p := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return p
}

// leave has somebody leave by itself.
func (b *broadcast) leave(ctx context.Context, rng *rand.Rand, r *room) error {
	p := pick(rng, &r.in)
	r.out = append(r.out, p)
	if _, err := b.f.do(ctx, rng, p.Account, leaveCall(r.id, newKey())); err != nil {
		return err
	}
	b.chronicle.Gone(r.id, mlsapi.MembershipEventChangeLeft, p.DID, p.DID, b.chronicle.End(r.id))
	return nil
}

// commitment is a commit of the creator's, hollow and hidden.
func (r *room) commitment(refs [][]byte, suite Suite) *Staged {
	s := &Staged{Epoch: r.epoch + 1, Commit: hollowPrivate(hollowCommit, r.group, r.epoch, 200)}
	if refs != nil {
		s.Welcome = hollowWelcome(suite, refs...)
	}
	return s
}

// committed notes that the creator's commit was accepted.
func (b *broadcast) committed(r *room, s *Staged, epoch, seq int64) error {
	if epoch != int64(s.Epoch) {
		return fmt.Errorf("a commit led to epoch %d, want %d", epoch, s.Epoch)
	}
	r.epoch = s.Epoch
	return b.acknowledged(r, seq, markOf(true, "", r.writers[0].DID.String(), epoch, sha256.Sum256(s.Commit)))
}

func (b *broadcast) remove(ctx context.Context, rng *rand.Rand, r *room) error {
	p := pick(rng, &r.in)
	r.out = append(r.out, p)
	s := r.commitment(nil, b.w.suite)
	answer, err := b.f.do(ctx, rng, r.writers[0], removeCall(r.id, p.DID, s, newKey()))
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeLeaveConvoOutput(answer.Body)
	if err != nil {
		return err
	}
	if err := b.committed(r, s, out.NewEpoch, *out.Seq); err != nil {
		return err
	}
	b.chronicle.Gone(r.id, mlsapi.MembershipEventChangeRemoved, r.writers[0].DID, p.DID, *out.Seq)
	return nil
}

// bring adds somebody, or brings somebody back.
func (b *broadcast) bring(ctx context.Context, rng *rand.Rand, r *room) error {
	p := pick(rng, &r.out)
	r.in = append(r.in, p)
	return b.admit(ctx, rng, r, p)
}

// admit adds people to a convo, by a commit with a Welcome.
func (b *broadcast) admit(ctx context.Context, rng *rand.Rand, r *room, people ...*person) error {
	var accounts []*Account
	var refs [][]byte
	for _, p := range people {
		accounts, refs = append(accounts, p.Account), append(refs, p.ref)
	}
	s := r.commitment(refs, b.w.suite)
	answer, err := b.f.do(ctx, rng, r.writers[0], addCall(r.id, didsOf(accounts), s, newKey()))
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeAddMembersOutput(answer.Body)
	if err != nil {
		return err
	}
	if err := b.committed(r, s, out.NewEpoch, *out.Seq); err != nil {
		return err
	}
	b.chronicle.Joined(r.id, r.writers[0].DID, *out.Seq, didsOf(accounts)...)
	for _, p := range people {
		b.chronicle.Welcomed(p.DID, r.id, p.device, out.NewEpoch)
	}
	return nil
}

// rotate commits nothing.
func (b *broadcast) rotate(ctx context.Context, rng *rand.Rand, r *room) error {
	s := r.commitment(nil, b.w.suite)
	answer, err := b.f.do(ctx, rng, r.writers[0], submitCall(r.id, s, newKey()))
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodeSubmitCommitOutput(answer.Body)
	if err != nil {
		return err
	}
	return b.committed(r, s, out.NewEpoch, out.Seq)
}

// create makes a convo and returns its id.
func (b *broadcast) create(ctx context.Context, rng *rand.Rand, by *Account, call Call) (string, error) {
	answer, err := b.f.do(ctx, rng, by, call)
	if err != nil {
		return "", err
	}
	out, err := mlsapi.DecodeCreateConvoOutput(answer.Body)
	if err != nil {
		return "", err
	}
	return out.ID, nil
}

// harm kills the server that leads, restarts the database, and kills the server that leads then.
func (b *broadcast) harm(ctx, writing context.Context, length time.Duration) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"the leader was killed", b.killLeader},
		{"PostgreSQL was restarted", b.restartDatabase},
		{"the leader was killed again", b.killLeader},
	} {
		sleep(writing, length/6)
		if writing.Err() != nil {
			b.w.Note("there was no time until %s", step.name)
			return nil
		}
		b.w.tell(step.name)
		if err := step.do(ctx); err != nil {
			return err
		}
		select {
		case after := <-b.after:
			b.w.Note("%s: the next event was told %s later", step.name, after.Round(time.Millisecond))
		case <-time.After(patience):
			return fmt.Errorf("%s, and no event was told for %s", step.name, patience)
		}
	}
	return nil
}

func (b *broadcast) killLeader(ctx context.Context) error {
	leader, err := b.f.leader(ctx)
	if err != nil {
		return err
	}
	b.began.Store(time.Now().UnixNano())
	if err := leader.Kill(); err != nil {
		return err
	}
	b.done.Store(time.Now().UnixNano())
	// The other one is alone for a while.
	sleep(ctx, time.Second/2)
	return leader.Start(ctx, nil)
}

func (b *broadcast) restartDatabase(ctx context.Context) error {
	b.began.Store(time.Now().UnixNano())
	if err := b.f.pg.Stop(); err != nil {
		return err
	}
	b.done.Store(time.Now().UnixNano())
	return b.f.pg.Start(ctx)
}
