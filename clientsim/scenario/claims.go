package scenario

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// lanes is about how many claims of one caller run at a time.
const lanes = 4

// claimTest is a run of claims.
type claimTest struct {
	w       *testbed.World
	claims  int // number of claims
	stock   int // one-time KeyPackages of each target
	targets []*client.Phone
	oneTime atomic.Int64 // one-time KeyPackages that were handed out
	last    atomic.Int64 // last-resort KeyPackages that were handed out
	empty   atomic.Int64 // claims that got nothing
}

// ClaimAtOnce makes eight callers claim the KeyPackages of two accounts.
func ClaimAtOnce(ctx context.Context, w *testbed.World) {
	f := newClaimTest(ctx, w, 2, 80)
	f.claimAll(ctx, 8, w.Net)
	f.claimed(ctx)
}

// ClaimsTwoServers makes sixteen callers claim the KeyPackages of twenty accounts, on two servers
// with one database.
func ClaimsTwoServers(ctx context.Context, w *testbed.World) {
	f := newClaimTest(ctx, w, 20, max(w.Claims, 200))
	w.WithCluster(ctx, testbed.ClusterOptions{Nodes: 2, Transport: w.Faults}, func(c *testbed.Cluster) {
		f.claimAll(ctx, 16, c.Clients...)
	})
	f.claimed(ctx)
}

// newClaimTest makes accounts with a tenth of the KeyPackages that will be claimed. Every second
// account has no last-resort KeyPackage.
func newClaimTest(ctx context.Context, w *testbed.World, targets, claims int) *claimTest {
	f := &claimTest{w: w, claims: claims, stock: max(claims/10/targets, 1)}
	for i := range targets {
		p := Must(w.Phone(fmt.Sprintf("target-%d", i)))
		Check(p.PublishMany(ctx, f.stock, i%2 == 0))
		f.targets = append(f.targets, p)
	}
	return f
}

// claimAll makes callers claim ten times as many KeyPackages as there are, from the servers by
// turns. Each one-time KeyPackage is handed out once, and again if the claim is repeated under its
// key. Later claims get a last-resort KeyPackage, or nothing if the account has none.
func (f *claimTest) claimAll(ctx context.Context, claimers int, servers ...*xrpc.Client) {
	var callers []*client.Phone
	for i := range claimers {
		p := Must(f.w.Phone(fmt.Sprintf("claimer-%d", i)))
		p.Net = servers[i%len(servers)]
		callers = append(callers, p)
	}
	start := time.Now()
	Each(lanes*claimers, f.claims/claimers*claimers, func(i int) {
		caller, n := i%claimers, i/claimers
		f.claim(ctx, callers[caller], f.targets[(caller+n)%len(f.targets)])
	})
	took := time.Since(start)
	if got, want := f.oneTime.Load(), int64(f.stock*len(f.targets)); got != want {
		f.w.Broken("%d KeyPackages for one use were handed out, and %d were published", got, want)
	}
	if f.last.Load() == 0 || f.empty.Load() == 0 {
		f.w.Broken("%d claims got a last-resort KeyPackage and %d got nothing: both have to happen", f.last.Load(),
			f.empty.Load())
	}
	f.w.Note("%d claims in %s: %d KeyPackages for one use, each once, %d times a last-resort one, %d times nothing",
		f.claims, took.Round(time.Millisecond), f.oneTime.Load(), f.last.Load(), f.empty.Load())
	for _, p := range callers {
		p.Net = f.w.Net
	}
}

func (f *claimTest) claim(ctx context.Context, p, target *client.Phone) {
	call := xrpc.ClaimCall([]syntax.DID{target.Account.DID}, f.w.Suite, "", xrpc.NewKey())
	out := Must(p.ClaimAny(ctx, call))
	if len(out.KeyPackages) == 0 {
		f.empty.Add(1)
	}
	for _, kp := range out.KeyPackages {
		if *kp.LastResort {
			f.last.Add(1)
			continue
		}
		f.oneTime.Add(1)
		again := Must(p.ClaimAny(ctx, call)).KeyPackages
		if len(again) != 1 || !bytes.Equal(again[0].KeyPackage, kp.KeyPackage) {
			f.w.Broken("a claim asked again under its key is another one")
		}
	}
}

// claimed checks that every account sees that it has no KeyPackages left.
func (f *claimTest) claimed(ctx context.Context) {
	for i, p := range f.targets {
		stats := Must(p.Stats(ctx))
		if want := int64(1 - i%2); stats.Available != 0 || stats.LastResort != want || !stats.NeedsReplenish {
			f.w.Broken("%s has %d KeyPackages available and %d of last resort, needsReplenish %t; want none, %d and true",
				p.Name, stats.Available, stats.LastResort, stats.NeedsReplenish, want)
		}
	}
}
