package clientsim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// The cast of claims-two-servers.
const (
	claimers     = 16
	claimTargets = 20
	lanes        = 4 // claims that one caller has under way at a time
)

// fair is a run of claims on two servers.
type fair struct {
	w       *World
	targets []*Phone
	oneTime atomic.Int64 // KeyPackages for one use that were handed out
	last    atomic.Int64 // last-resort ones
	empty   atomic.Int64 // claims that got nothing
}

// ClaimsTwoServers has sixteen callers claim the KeyPackages of twenty accounts
// on two mlsd processes with one database, ten times as often as there are any:
// each is handed out, once. What comes afterwards is a last-resort KeyPackage,
// or nothing from an account that has none.
func ClaimsTwoServers(ctx context.Context, w *World) error {
	sibling, err := w.Server.Sibling()
	if err != nil {
		return err
	}
	if err := sibling.Start(ctx, nil); err != nil {
		return err
	}
	other := NewClient(sibling.URL(), w.net.audience, w.Faults, w.Stats)
	err = w.claimFair(ctx, other)
	w.closeIdle()
	return errors.Join(err, sibling.Stop())
}

func (w *World) claimFair(ctx context.Context, other *Client) error {
	claims := max(w.Claims, 200)
	f := &fair{w: w}
	stock := max(claims/10/claimTargets, 1)
	for i := range claimTargets {
		p, err := w.Phone(fmt.Sprintf("target-%d", i))
		if err != nil {
			return err
		}
		if err := p.Stock(ctx, stock, i%2 == 0); err != nil {
			return err
		}
		f.targets = append(f.targets, p)
	}
	var callers []*Phone
	for i := range claimers {
		p, err := w.Phone(fmt.Sprintf("claimer-%d", i))
		if err != nil {
			return err
		}
		if i%2 == 1 {
			p.net = other
		}
		callers = append(callers, p)
	}
	start := time.Now()
	if err := f.run(ctx, callers, claims/claimers); err != nil {
		return err
	}
	took := time.Since(start)
	if got, want := f.oneTime.Load(), int64(stock*claimTargets); got != want {
		w.Broken("%d KeyPackages for one use were handed out, and %d were published", got, want)
	}
	if f.last.Load() == 0 || f.empty.Load() == 0 {
		w.Broken("%d claims got a last-resort KeyPackage and %d got nothing: both have to happen", f.last.Load(), f.empty.Load())
	}
	w.Note("%d claims on two servers in %s: %d KeyPackages for one use, each once, %d times a last-resort one, %d times nothing",
		claims, took.Round(time.Millisecond), f.oneTime.Load(), f.last.Load(), f.empty.Load())
	return f.sold(ctx)
}

// run has every caller claim from one target after the other, several at a time.
func (f *fair) run(ctx context.Context, callers []*Phone, each int) error {
	errs := make([]error, len(callers)*lanes)
	var all sync.WaitGroup
	for i, p := range callers {
		var next atomic.Int64
		for lane := range lanes {
			all.Go(func() {
				for n := next.Add(1) - 1; n < int64(each); n = next.Add(1) - 1 {
					if err := f.claim(ctx, p, f.targets[(i+int(n))%len(f.targets)]); err != nil {
						errs[i*lanes+lane] = err
						return
					}
				}
			})
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

func (f *fair) claim(ctx context.Context, p, target *Phone) error {
	out, err := p.claimAny(ctx, claimCall([]syntax.DID{target.Account.DID}, f.w.suite, "", newKey()))
	if err != nil {
		return err
	}
	if len(out.KeyPackages) == 0 {
		f.empty.Add(1)
	}
	for _, kp := range out.KeyPackages {
		if *kp.LastResort {
			f.last.Add(1)
			continue
		}
		f.oneTime.Add(1)
	}
	return nil
}

// sold: every account sees that it has none left.
func (f *fair) sold(ctx context.Context) error {
	for i, p := range f.targets {
		stats, err := p.Stats(ctx)
		if err != nil {
			return err
		}
		if want := int64(1 - i%2); stats.Available != 0 || stats.LastResort != want || !stats.NeedsReplenish {
			f.w.Broken("%s has %d KeyPackages available and %d of last resort, needsReplenish %t; want none, %d and true",
				p.Name, stats.Available, stats.LastResort, stats.NeedsReplenish, want)
		}
	}
	return nil
}
