package torture

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
)

// judge compares what the servers say with what was acknowledged. No fault happens any more. What
// is wrong goes into the world's report.
func (l *load) judge(ctx context.Context, report *Report) error {
	l.w.Progress("waiting until every subscriber has everything")
	if err := l.w.AwaitAndJudge(ctx, l.subscribers, l.model.History, xrpc.CallTimeout); err != nil {
		return err
	}
	l.w.Progress("reading every convo")
	for _, c := range l.model.Snapshot() {
		if err := l.judgeConvo(ctx, &c); err != nil {
			return err
		}
	}
	l.w.Progress("asking for every answer again")
	if err := l.replay(ctx, report); err != nil {
		return err
	}
	l.w.Progress("looking for an order of every history")
	report.Unmarked = l.calls.keys.change(markConcurrent)
	for _, j := range l.journals() {
		found, operations, undecided := j.judge()
		l.w.Report(found...)
		report.Histories[j.kind] = operations
		report.Undecided += undecided
		if undecided*maxUndecided > len(j.objects) {
			l.w.Broken("%s: the histories of %d of %d objects took too long to judge", j.kind, undecided, len(j.objects))
		}
		if operations == 0 {
			l.w.Broken("%s: the run had no operations, so it shows nothing", j.kind)
		}
	}
	for i, node := range l.cluster.Nodes {
		broken, err := node.CheckDatabase(ctx)
		if err != nil {
			return err
		}
		for _, text := range broken {
			l.w.Broken("/check of node %d: %s", i+1, text)
		}
	}
	for _, c := range l.model.Snapshot() {
		report.Entries += len(c.Sent)
		for _, made := range c.Commits {
			if made.Seq > 0 {
				report.Entries++
			}
		}
	}
	return nil
}

// judgeConvo reads a convo from every node, as its creator. The error is that of a node that does
// not answer: the other convos would have to wait for it as well.
func (l *load) judgeConvo(ctx context.Context, c *history.ConvoModel) error {
	l.mu.RLock()
	i := slices.IndexFunc(l.convos, func(r *convo) bool { return r.id == c.ID })
	by := l.convos[i].writers[0]
	l.mu.RUnlock()
	for node, client := range l.cluster.Clients {
		name := fmt.Sprintf("the creator at node %d", node+1)
		v, err := l.w.ViewBy(ctx, client, name, by, c.ID)
		if err != nil {
			l.w.Broken("%s: %v", name, err)
			if errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			continue
		}
		// These members decrypt nothing. The text of a message is a name of its bytes.
		for i := range v.Log {
			entry := &v.Log[i]
			v.Inbox = append(v.Inbox, history.Item{
				Seq: entry.Seq, ID: entry.ID, Commit: xrpc.IsCommit(entry), Sender: entry.Sender, Text: c.Attempted[history.DigestOf(entry.Ciphertext)],
			})
		}
		l.w.Report(history.CheckView(c, v)...)
		l.judgeRoster(ctx, client, by, c, name)
	}
	return nil
}

func (l *load) judgeRoster(ctx context.Context, node *xrpc.Client, by *xrpc.Account, c *history.ConvoModel, name string) {
	out, err := xrpc.Ask[mlsapi.GetConvoOutput](ctx, node, by, xrpc.ConvoCall(c.ID))
	if err != nil {
		l.w.Broken("%s: %v", name, err)
		return
	}
	var got []syntax.DID
	for _, m := range out.Convo.Members {
		got = append(got, m.DID)
	}
	slices.Sort(got)
	if want := c.Live(); !slices.Equal(got, want) {
		l.w.Report(history.Violation{Kind: history.Broken, Convo: c.ID, Who: name, What: fmt.Sprintf("the members are %v, want %v", got, want)})
	}
}

// claimAsked is how long after its answer a claim of KeyPackages is asked for again. The server keeps
// the record of a claim for half an hour, and its answer can have come later than the record.
const claimAsked = 30*time.Minute - verdictTimeout - xrpc.CallTimeout

// replay sends every acknowledged request again whose record the server still has. The journal of keys
// compares the answers with the first ones.
func (l *load) replay(ctx context.Context, report *Report) error {
	calls := l.model.AcknowledgedCalls()
	const lanes = 16
	var next, replayed atomic.Int64
	var all sync.WaitGroup
	for lane := range lanes {
		rng := rand.New(rand.NewPCG(l.w.Seed, uint64(0x4e9<<8+lane)))
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(calls)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				s := calls[i]
				if s.Call.Method == mlsapi.NSIDGetKeyPackages && time.Since(s.At) > claimAsked {
					continue
				}
				replayed.Add(1)
				answer, err := l.calls.do(ctx, rng, s.Who, s.Call)
				switch {
				case err != nil && ctx.Err() == nil:
					l.w.Broken("asked again: %v", err)
				case err == nil && !answer.Replayed():
					l.w.Report(history.Violation{
						Kind: history.Lost, Convo: s.Call.Convo, What: fmt.Sprintf("%s with key %s asked again is answered as if for the first time", s.Call.Method, s.Call.Key),
					})
				}
			}
		})
	}
	all.Wait()
	report.Replayed = int(replayed.Load())
	return ctx.Err()
}

// sorted returns the keys of a map in order.
func sorted(m map[string]int) []string { return slices.Sorted(maps.Keys(m)) }
