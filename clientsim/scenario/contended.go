package scenario

import (
	"context"
	"fmt"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// committers is how many members commit at once in contended-commits.
const committers = 8

// maxLosses is how many races in a row a member may lose. After the third loss, the server reserves
// an epoch for the member. Each other member may have lost as often or more, and then goes first. A
// commit that ran already when a reservation was made may still win, at the beginning and at the
// end of the reservation.
const maxLosses = 3 + committers + 2

// maxEpochs is how many epochs may pass between a member's first attempt and its accepted commit.
// While a member reads the log and commits again, each other member can do the same about once.
const maxEpochs = maxLosses * (committers - 1)

// contest is a group of eight members that all want every epoch.
type contest struct {
	w     *testbed.World
	convo string
	goal  uint64 // the epoch in which the contest ends
}

// score is one member's result.
type score struct {
	wins    int
	losses  int // longest run of lost races
	epochs  int // most epochs between the first attempt and the accepted commit
	current int
	since   uint64
}

// ContendedCommits makes eight members rotate their keys as fast as they can. Each member commits
// again as soon as it knows the winner. Exactly one commit per epoch is accepted, and no member
// loses for ever.
func ContendedCommits(ctx context.Context, w *testbed.World) {
	phones, convo := Must2(w.Convo(ctx, committers))
	group := Must(phones[0].Group(convo))
	epochs := max(w.Epochs, 5)
	c := &contest{w: w, convo: convo, goal: group.Epoch() + uint64(epochs)}
	start := time.Now()
	scores := make([]score, len(phones))
	Each(len(phones), len(phones), func(i int) { c.play(ctx, phones[i], &scores[i]) })
	c.judge(phones, scores, epochs, time.Since(start))
	for _, p := range phones {
		Check(p.Send(ctx, convo, "still friends, "+p.Name))
	}
	Check(w.SyncAll(ctx, convo, phones...))
}

func (c *contest) play(ctx context.Context, p *client.Phone, s *score) {
	for {
		Check(p.Sync(ctx, c.convo))
		group := Must(p.Group(c.convo))
		epoch := group.Epoch()
		if epoch >= c.goal {
			return
		}
		if s.current == 0 {
			s.since = epoch
		}
		d := Must(p.DraftCommit(c.convo, mlsclient.Change{}))
		_, err := p.Deliver(ctx, d)
		switch {
		case err == nil:
			s.wins, s.current = s.wins+1, 0
		case xrpc.ErrorName(err) == mlsapi.ErrEpochMismatch:
			s.current++
		default:
			Check(err)
		}
		s.losses, s.epochs = max(s.losses, s.current), max(s.epochs, int(epoch-s.since)+1)
		if err == nil {
			c.w.Progress(fmt.Sprintf("epoch %d of %d", d.Epoch, c.goal))
		}
	}
}

func (c *contest) judge(phones []*client.Phone, scores []score, epochs int, took time.Duration) {
	wins, fewest, losses, waited := 0, epochs, 0, 0
	for i, s := range scores {
		wins, fewest, losses, waited = wins+s.wins, min(fewest, s.wins), max(losses, s.losses), max(waited, s.epochs)
		if s.losses > maxLosses {
			c.w.Broken("%s lost %d races in a row, want at most %d", phones[i].Name, s.losses, maxLosses)
		}
		if s.epochs > maxEpochs {
			c.w.Broken("%s waited %d epochs for its commit, want at most %d", phones[i].Name, s.epochs, maxEpochs)
		}
	}
	if wins != epochs {
		c.w.Broken("%d commits were accepted in %d epochs", wins, epochs)
	}
	c.w.Note("%d commits of %d members in %s, at least %d by each; the longest wait: %d lost races, %d epochs",
		wins, len(phones), took.Round(time.Millisecond), fewest, losses, waited)
}
