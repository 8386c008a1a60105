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
	targets []*client.Phone
	oneTime atomic.Int64 // one-time KeyPackages that were handed out
	last    atomic.Int64 // last-resort KeyPackages that were handed out
	empty   atomic.Int64 // claims that got nothing
}

// ClaimAtOnce makes eight callers claim the KeyPackages of two accounts.
func ClaimAtOnce(ctx context.Context, w *testbed.World) { claimAll(ctx, w, w.Net, 8, 2, 80) }

// ClaimsTwoServers makes sixteen callers claim the KeyPackages of twenty accounts, on two servers
// with one database.
func ClaimsTwoServers(ctx context.Context, w *testbed.World) {
	w.WithSibling(ctx, func(_ *testbed.Proc, other *xrpc.Client) { claimAll(ctx, w, other, 16, 20, max(w.Claims, 200)) })
}

// claimAll makes callers claim ten times as many KeyPackages as there are. Every second claim goes
// to the other server. Each one-time KeyPackage is handed out once, and again if the claim is
// repeated under its key. Later claims get a last-resort KeyPackage, or nothing if the account has
// none.
func claimAll(ctx context.Context, w *testbed.World, other *xrpc.Client, claimers, targets, claims int) {
	f := &claimTest{w: w}
	stock := max(claims/10/targets, 1)
	for i := range targets {
		p := Must(w.Phone(fmt.Sprintf("target-%d", i)))
		Check(p.PublishMany(ctx, stock, i%2 == 0))
		f.targets = append(f.targets, p)
	}
	var callers []*client.Phone
	for i := range claimers {
		p := Must(w.Phone(fmt.Sprintf("claimer-%d", i)))
		if i%2 == 1 {
			p.Net = other
		}
		callers = append(callers, p)
	}
	start := time.Now()
	f.run(ctx, callers, claims/claimers)
	took := time.Since(start)
	if got, want := f.oneTime.Load(), int64(stock*targets); got != want {
		w.Broken("%d KeyPackages for one use were handed out, and %d were published", got, want)
	}
	if f.last.Load() == 0 || f.empty.Load() == 0 {
		w.Broken("%d claims got a last-resort KeyPackage and %d got nothing: both have to happen", f.last.Load(),
			f.empty.Load())
	}
	w.Note("%d claims in %s: %d KeyPackages for one use, each once, %d times a last-resort one, %d times nothing",
		claims, took.Round(time.Millisecond), f.oneTime.Load(), f.last.Load(), f.empty.Load())
	f.claimed(ctx)
}

// run makes every caller claim from one target after the other, several at a time.
func (f *claimTest) run(ctx context.Context, callers []*client.Phone, each int) {
	Each(lanes*len(callers), each*len(callers), func(i int) {
		caller, n := i%len(callers), i/len(callers)
		f.claim(ctx, callers[caller], f.targets[(caller+n)%len(f.targets)])
	})
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
