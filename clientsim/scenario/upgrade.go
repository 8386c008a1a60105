package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/traffic"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

const (
	upgradeFor  = 2 * time.Minute // longest load, if --for says no longer one; it ends when the last server was replaced
	upgradeRate = 50              // messages a second; a fixed rate makes the load the same on every machine
	together    = 2 * time.Second // how long the servers run together after each replacement
)

// RollingUpgrade replaces two servers on one database, one at a time, by each of the binaries of
// Options.Upgrade. At the end, one server goes back to the binary before the last. Clients write
// and listen all the time, and rosters change. Every call succeeds by the retry rule, and every
// subscriber sees everything once, in order.
func RollingUpgrade(ctx context.Context, w *testbed.World) {
	if w.Rate == 0 {
		w.Rate = upgradeRate
	}
	w.WithCluster(ctx, testbed.ClusterOptions{Nodes: 2, Settings: unlimited(ctx, w)}, func(f *testbed.Cluster) {
		b := newLiveRun(ctx, w, f, traffic.Options{})
		b.length = max(w.For, upgradeFor)
		b.disturb = func(ctx, writing context.Context, _ time.Duration) { b.replaceAll(ctx, writing) }
		// After the run, the scenario's own server starts on this database.
		w.Server.UseBinary(w.Upgrade[len(w.Upgrade)-1])
		b.playAndStop(ctx)
		w.Note("no call failed; %d attempts were repeated. The longest pause: a message took %s until it was "+
			"acknowledged, retries included",
			w.Stats.Retried.Load(), time.Duration(b.LongestSend.Load()).Round(time.Millisecond))
		w.CheckNodes(ctx, f)
	})
}

// replaceAll replaces the servers, and then ends the writing.
func (b *liveRun) replaceAll(ctx, writing context.Context) {
	defer b.stopWriting()
	was := b.cluster.Nodes[0].Binary()
	for _, binary := range b.w.Upgrade {
		for i := range b.cluster.Nodes {
			b.replace(ctx, writing, i, binary)
		}
		if binary != b.w.Upgrade[len(b.w.Upgrade)-1] {
			was = binary
		}
	}
	b.replace(ctx, writing, 0, was)
}

// replace stops a server and starts another binary in its place. Both servers then run for a while.
func (b *liveRun) replace(ctx, writing context.Context, i int, binary string) {
	if writing.Err() != nil {
		Fail("the writers ended before the servers were replaced")
	}
	begun, node := time.Now(), b.cluster.Nodes[i]
	b.w.Progress(fmt.Sprintf("node %d becomes %s", i+1, filepath.Base(binary)))
	Check(node.Stop())
	node.UseBinary(binary)
	Check(errs.Wrap(node.Start(ctx, nil), "node %d as %s", i+1, filepath.Base(binary)))
	b.w.Note("node %d became %s in %s", i+1, filepath.Base(binary), time.Since(begun).Round(time.Millisecond))
	xrpc.Sleep(writing, together)
}
