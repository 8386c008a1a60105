package clientsim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"mlsd/api/mlsapi"
)

// committers is how many members commit at once in contended-commits.
const committers = 8

// mostLosses bounds how many races in a row a member may lose. After the third
// the server keeps an epoch free for it; but each of the others may have lost as
// often, or more often, and goes first; and a commit that was already under way
// when a reservation was made may still win, at its beginning and at its end.
const mostLosses = 3 + committers + 2

// mostEpochs bounds how many epochs may go by meanwhile. While a member reads
// the log and commits anew, each of the others can do the same about once.
const mostEpochs = mostLosses * (committers - 1)

// contest is eight members who want every epoch to themselves.
type contest struct {
	w     *World
	convo string
	goal  uint64 // the epoch in which it ends
}

// score is how it went for one member.
type score struct {
	wins    int
	losses  int // longest run of lost races
	epochs  int // most epochs that went by from wanting to commit to having committed
	current int
	since   uint64
}

// ContendedCommits has eight members rotate their keys as fast as they can, each
// again as soon as it knows who has won. Of each epoch's commits exactly one is
// accepted, and nobody loses for ever.
func ContendedCommits(ctx context.Context, w *World) error {
	phones, convo, err := w.Convo(ctx, committers)
	if err != nil {
		return err
	}
	group, err := phones[0].Group(convo)
	if err != nil {
		return err
	}
	epochs := max(w.Epochs, 5)
	c := &contest{w: w, convo: convo, goal: group.Epoch() + uint64(epochs)}
	start := time.Now()
	scores, errs := make([]score, len(phones)), make([]error, len(phones))
	var all sync.WaitGroup
	for i, p := range phones {
		all.Go(func() { errs[i] = c.play(ctx, p, &scores[i]) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.judge(phones, scores, epochs, time.Since(start))
	for _, p := range phones {
		if err := p.Send(ctx, convo, "still friends, "+p.Name); err != nil {
			return err
		}
	}
	return w.SyncAll(ctx, convo, phones...)
}

func (c *contest) play(ctx context.Context, p *Phone, s *score) error {
	for {
		if err := p.Sync(ctx, c.convo); err != nil {
			return err
		}
		group, err := p.Group(c.convo)
		if err != nil {
			return err
		}
		epoch := group.Epoch()
		if epoch >= c.goal {
			return nil
		}
		if s.current == 0 {
			s.since = epoch
		}
		d, err := p.DraftCommit(c.convo, Change{})
		if err != nil {
			return err
		}
		_, err = p.Deliver(ctx, d)
		switch {
		case err == nil:
			s.wins, s.current = s.wins+1, 0
		case ErrorName(err) == mlsapi.ErrEpochMismatch:
			s.current++
		default:
			return err
		}
		s.losses, s.epochs = max(s.losses, s.current), max(s.epochs, int(epoch-s.since)+1)
		if err == nil {
			c.w.tell(fmt.Sprintf("epoch %d of %d", d.Epoch, c.goal))
		}
	}
}

func (c *contest) judge(phones []*Phone, scores []score, epochs int, took time.Duration) {
	wins, fewest, losses, waited := 0, epochs, 0, 0
	for i, s := range scores {
		wins, fewest, losses, waited = wins+s.wins, min(fewest, s.wins), max(losses, s.losses), max(waited, s.epochs)
		if s.losses > mostLosses {
			c.w.Broken("%s lost %d races in a row, want at most %d", phones[i].Name, s.losses, mostLosses)
		}
		if s.epochs > mostEpochs {
			c.w.Broken("%s waited %d epochs for its commit, want at most %d", phones[i].Name, s.epochs, mostEpochs)
		}
	}
	if wins != epochs {
		c.w.Broken("%d commits were accepted in %d epochs", wins, epochs)
	}
	c.w.Note("%d commits of %d members in %s, at least %d by each; the longest wait: %d lost races, %d epochs",
		wins, len(phones), took.Round(time.Millisecond), fewest, losses, waited)
}
