package scenario

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// The writers of LiveSequencers go on until the last change, at most for as long as sequencersLimit
// longer than --for. The pauses of the scenario are parts of sequencersFor, unless --for is longer. The
// first change waits until a session of the database is 10 s old.
const (
	sequencersFor   = 40 * time.Second
	sequencersLimit = 3 * time.Minute
)

// LiveSequencers is Live while an operator changes the number of the stream's sequencers from one to
// four and back, twice. Both servers are killed in turn while there are four.
func LiveSequencers(ctx context.Context, w *testbed.World) error {
	return w.WithCluster(ctx, func(f *testbed.Cluster) error {
		b := newLiveRun(ctx, w, f)
		b.length = max(w.For, sequencersFor)
		b.limit = b.length + sequencersLimit
		b.disturb = func(ctx, writing context.Context, length time.Duration) error {
			defer b.stopWriting()
			ends := time.Now().Add(w.For)
			if err := b.changeSequencers(ctx, writing, length); err != nil {
				return err
			}
			xrpc.Sleep(writing, time.Until(ends))
			return nil
		}
		err := b.play(ctx)
		return errors.Join(err, b.subscribers.Stop())
	})
}

// changeSequencers changes the number over and over, and notes for how long no event came.
func (b *liveRun) changeSequencers(ctx, writing context.Context, length time.Duration) error {
	change := func(number int) func() error {
		return func() error { return b.cluster.Nodes[0].Command(ctx, nil, "sequencers", strconv.Itoa(number)) }
	}
	kill := func(node *testbed.Proc) func() error {
		return func() error {
			if err := node.Kill(); err != nil {
				return err
			}
			xrpc.Sleep(ctx, time.Second/2) // the other server is alone for a while
			return node.Start(ctx, nil)
		}
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"nothing happens", func() error { return nil }},
		{"four sequencers", change(4)},
		{"the first server was killed", kill(b.cluster.Nodes[0])},
		{"one sequencer", change(1)},
		{"four sequencers again", change(4)},
		{"the second server was killed", kill(b.cluster.Nodes[1])},
		{"one sequencer again", change(1)},
	} {
		if writing.Err() != nil {
			return fmt.Errorf("the writers ended before: %s", step.name)
		}
		b.w.Progress(step.name)
		b.gap.Store(0)
		began := time.Now()
		if err := step.do(); err != nil {
			return err
		}
		took := time.Since(began)
		xrpc.Sleep(writing, length/20)
		b.w.Note("%s, in %s: for %s no event came", step.name, took.Round(time.Millisecond), time.Duration(b.gap.Load()).Round(time.Millisecond))
	}
	return nil
}
