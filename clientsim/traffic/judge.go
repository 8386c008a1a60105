package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Judgement says what was judged.
type Judgement struct {
	Entries   int // acknowledged entries of logs
	Unmarked  int // answers to concurrent repetitions that were not marked as replays
	Replayed  int // acknowledged requests that were sent again in the end
	Histories map[string]int
	Undecided int // objects whose search for an order took too long
}

// Judge compares what the servers say with what was acknowledged. All faults must have ended.
// Broken promises go into the world's report.
func (t *Traffic) Judge(ctx context.Context) (done Judgement, err error) {
	defer Catch(&err)
	done.Histories = map[string]int{}
	Check(t.Await(ctx))
	t.w.Progress("reading every convo")
	for _, c := range t.Model.Snapshot() {
		Check(t.judgeConvo(ctx, &c))
	}
	t.w.Progress("asking for every answer again")
	done.Replayed = Must(t.replay(ctx))
	t.w.Progress("looking for an order of every history")
	done.Unmarked = t.calls.keys.change(markConcurrent)
	for _, j := range t.journals() {
		found, operations, undecided := j.judge()
		t.w.Report(found...)
		done.Histories[j.kind] = operations
		done.Undecided += undecided
		if undecided*maxUndecided > len(j.objects) {
			t.w.Broken("%s: the histories of %d of %d objects took too long to judge", j.kind, undecided, len(j.objects))
		}
		if operations == 0 {
			t.w.Broken("%s: the run had no operations, so it shows nothing", j.kind)
		}
	}
	t.w.CheckNodes(ctx, t.cluster)
	for _, c := range t.Model.Snapshot() {
		done.Entries += len(c.Sent)
		for _, made := range c.Commits {
			if made.Seq > 0 {
				done.Entries++
			}
		}
	}
	return done, nil
}

// judgeConvo reads a convo from every node, as its creator. It returns an error if a node does not
// answer, because the other convos would also wait for that node.
func (t *Traffic) judgeConvo(ctx context.Context, c *history.ConvoModel) error {
	t.mu.RLock()
	i := slices.IndexFunc(t.convos, func(r *Convo) bool { return r.ID == c.ID })
	by := t.convos[i].Creator
	t.mu.RUnlock()
	for node, client := range t.cluster.Clients {
		name := fmt.Sprintf("the creator at node %d", node+1)
		v, err := t.w.ViewBy(ctx, client, name, by, c.ID)
		if err != nil {
			t.w.Broken("%s: %v", name, err)
			if errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			continue
		}
		// These members decrypt nothing. The text of a message is a name of its bytes.
		for i := range v.Log {
			entry := &v.Log[i]
			v.Inbox = append(v.Inbox, history.Item{
				Seq: entry.Seq, ID: entry.ID, Commit: xrpc.IsCommit(entry), Sender: entry.Sender,
				Text: c.Attempted[history.DigestOf(entry.Ciphertext)],
			})
		}
		t.w.Report(history.CheckView(c, v)...)
		t.judgeRoster(ctx, client, by, c, name)
	}
	return nil
}

func (t *Traffic) judgeRoster(ctx context.Context, node *xrpc.Client, by *xrpc.Account, c *history.ConvoModel,
	name string) {
	out, err := xrpc.Ask[mlsapi.GetConvoOutput](ctx, node, by, xrpc.ConvoCall(c.ID))
	if err != nil {
		t.w.Broken("%s: %v", name, err)
		return
	}
	var got []syntax.DID
	for _, m := range out.Convo.Members {
		got = append(got, m.DID)
	}
	slices.Sort(got)
	if want := c.Live(); !slices.Equal(got, want) {
		t.w.Report(history.Violation{Kind: history.Broken, Convo: c.ID, Who: name,
			What: fmt.Sprintf("the members are %v, want %v", got, want)})
	}
	if got, want := adminsOf(out), c.Admins(); !slices.Equal(got, want) {
		t.w.Report(history.Violation{Kind: history.Broken, Convo: c.ID, Who: name,
			What: fmt.Sprintf("the admins are %v, want %v", got, want)})
	}
}

// claimAsked is how long after its answer a claim of KeyPackages may be sent again. The server
// keeps the record of a claim for half an hour, and the answer can have come later than the record.
const claimAsked = 30*time.Minute - verdictTimeout - xrpc.CallTimeout

// replay sends again every acknowledged request whose record the server still has. The journal of
// keys compares the new answers with the first answers.
func (t *Traffic) replay(ctx context.Context) (int, error) {
	calls := t.Model.AcknowledgedCalls()
	const lanes = 16
	var replayed atomic.Int64
	err := Attempt(func() {
		Each(lanes, len(calls), func(i int) {
			Check(ctx.Err())
			s, rng := calls[i], rand.New(rand.NewPCG(t.w.Seed, uint64(0x4e9<<32+i)))
			if s.Call.Method == mlsapi.NSIDGetKeyPackages && time.Since(s.At) > claimAsked {
				return
			}
			replayed.Add(1)
			answer, err := t.calls.do(ctx, rng, s.Who, s.Call)
			switch {
			case err != nil && ctx.Err() == nil:
				t.w.Broken("asked again: %v", err)
			case err == nil && !answer.Replayed():
				t.w.Report(history.Violation{
					Kind: history.Lost, Convo: s.Call.Convo,
					What: fmt.Sprintf("%s with key %s asked again is answered as if for the first time", s.Call.Method,
						s.Call.Key),
				})
			}
		})
	})
	return int(replayed.Load()), err
}
