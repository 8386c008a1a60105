package scenario

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// callerLimit is how many one-time KeyPackages of one device one caller gets in a day.
const callerLimit = 30

// KeysExhausted uses up accounts' KeyPackages. One account then serves its last-resort KeyPackage,
// and another account has no KeyPackage left. The owners publish new KeyPackages in one request,
// among faulty KeyPackages. One caller alone cannot use up an account.
func KeysExhausted(ctx context.Context, w *testbed.World) {
	callers := Must(w.Phones(ctx, 6))
	lastResorts(ctx, w, callers)
	missingAndRefilled(ctx, w, callers)
	callerLimited(ctx, w, callers)
}

// take makes a caller claim from one account.
func take(ctx context.Context, w *testbed.World, caller, owner *client.Phone) *mlsapi.GetKeyPackagesOutput {
	return Must(caller.ClaimAny(ctx, xrpc.ClaimCall([]syntax.DID{owner.Account.DID}, w.Suite, "", xrpc.NewKey())))
}

// served checks what a claim got: how many one-time and last-resort KeyPackages, and whether the
// account is listed as missing or limited.
func served(w *testbed.World, what string, owner *client.Phone, out *mlsapi.GetKeyPackagesOutput, oneTime, last int,
	missing, limited bool) {
	gotOnce, gotLast := 0, 0
	for _, kp := range out.KeyPackages {
		if *kp.LastResort {
			gotLast++
		} else {
			gotOnce++
		}
	}
	isMissing, isLimited := slices.Contains(out.Missing, owner.Account.DID),
		slices.Contains(out.Limited, owner.Account.DID)
	if gotOnce != oneTime || gotLast != last || isMissing != missing || isLimited != limited {
		w.Broken("%s: %d for one use, %d of last resort, missing %t, limited %t; want %d, %d, %t, %t",
			what, gotOnce, gotLast, isMissing, isLimited, oneTime, last, missing, limited)
	}
}

// stands checks the account's own counts.
func stands(ctx context.Context, w *testbed.World, what string, owner *client.Phone, available, claimed,
	lastResort int64) *mlsapi.GetKeyPackageStatsOutput {
	stats := Must(owner.Stats(ctx))
	if stats.Available != available || stats.Claimed != claimed || stats.LastResort != lastResort {
		w.Broken("%s: %d available, %d claimed, %d of last resort; want %d, %d, %d",
			what, stats.Available, stats.Claimed, stats.LastResort, available, claimed, lastResort)
	}
	if want := available < stats.Threshold; stats.NeedsReplenish != want {
		w.Broken("%s: %d available of at least %d, and needsReplenish is %t", what, available, stats.Threshold,
			stats.NeedsReplenish)
	}
	var byDevice, bySuite int64
	for _, d := range stats.ByDevice {
		byDevice += d.Available
	}
	for _, s := range stats.ByCipherSuite {
		bySuite += s.Available
	}
	if byDevice != available || bySuite != available {
		w.Broken("%s: %d available, by device %d, by suite %d", what, available, byDevice, bySuite)
	}
	return stats
}

// lastResorts lets six callers claim four one-time KeyPackages and a last-resort KeyPackage. The
// last-resort KeyPackage adds the owner several times.
func lastResorts(ctx context.Context, w *testbed.World, callers []*client.Phone) {
	owner := Must(w.Phone("owner"))
	Check(owner.PublishMany(ctx, 4, true))
	stands(ctx, w, "freshly published", owner, 4, 0, 1)
	var shared [][]byte
	for i, caller := range callers {
		out := take(ctx, w, caller, owner)
		once, last := 1, 0
		if i >= 4 {
			once, last = 0, 1
		}
		served(w, fmt.Sprintf("claim %d", i), owner, out, once, last, false, false)
		if i >= 4 && len(out.KeyPackages) > 0 {
			shared = append(shared, out.KeyPackages[0].KeyPackage)
		}
	}
	stands(ctx, w, "used up", owner, 0, 4, 1)
	if len(shared) != 2 || !bytes.Equal(shared[0], shared[1]) {
		w.Broken("two claims of a last-resort KeyPackage got different ones")
		return
	}
	for i, kp := range shared {
		adder := callers[4+i]
		d := Must(adder.DraftCreate(testbed.DIDs([]*client.Phone{owner}), [][]byte{kp}))
		answer := Must(adder.Deliver(ctx, d))
		convo := Must(xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body))
		Check(owner.Join(ctx, convo.ID))
		Check(owner.Send(ctx, convo.ID, fmt.Sprintf("of last resort, %d", i)))
	}
	stands(ctx, w, "of last resort used twice", owner, 0, 4, 1)
}

// missingAndRefilled uses up an account without a last-resort KeyPackage, and then refills it.
func missingAndRefilled(ctx context.Context, w *testbed.World, callers []*client.Phone) {
	owner := Must(w.Phone("refiller"))
	stats := stands(ctx, w, "nothing published", owner, 0, 0, 0)
	Check(owner.PublishMany(ctx, 2, false))
	for i, caller := range callers[:3] {
		out := take(ctx, w, caller, owner)
		once := min(max(2-i, 0), 1)
		served(w, fmt.Sprintf("claim %d of two", i), owner, out, once, 0, once == 0, false)
	}
	refill(ctx, w, owner, int(stats.Threshold))
	stands(ctx, w, "refilled", owner, stats.Threshold, 2, 0)
	out := take(ctx, w, callers[3], owner)
	served(w, "a claim after the refill", owner, out, 1, 0, false, false)
}

// refill publishes n good KeyPackages in one request. The request also has a duplicate, a broken
// KeyPackage and another account's KeyPackage. The first answer is lost.
func refill(ctx context.Context, w *testbed.World, owner *client.Phone, n int) {
	var batch []mlsclient.KeyPackage
	var want []string
	for range n {
		kp := Must(owner.Device.KeyPackage())
		batch, want = append(batch, kp), append(want, mlsapi.ResultStatusPublished)
	}
	broken := Must(mlsclient.BreakLeaf(owner.Device))
	mask := Must(mlsclient.NewDevice("did:plc:somebodyelse", w.Suite))
	foreign := Must(mask.KeyPackage())
	batch = append(batch, batch[0], broken, foreign)
	want = append(want, mlsapi.ResultStatusDuplicate, mlsapi.ResultStatusRejected, mlsapi.ResultStatusRejected)
	d := Must(owner.DraftPublishMany(batch))
	answer := Must(w.DeliverWithLostAnswer(ctx, owner, d))
	out := Must(xrpc.Decode[mlsapi.PublishKeyPackagesOutput](answer.Body))
	if len(out.Results) != len(want) {
		Fail("publishKeyPackages: %d results for %d KeyPackages", len(out.Results), len(want))
	}
	for i, r := range out.Results {
		if r.Status != want[i] {
			w.Broken("publishKeyPackages: KeyPackage %d is %s, want %s (%s)", i, r.Status, want[i], xrpc.Show(r.Message))
		}
		name := mlsapi.ErrInvalidKeyPackage
		if rejected := r.Status == mlsapi.ResultStatusRejected; rejected && xrpc.Show(r.Error) != xrpc.Show(&name) {
			w.Broken("publishKeyPackages: KeyPackage %d is rejected with %s, want %s", i, xrpc.Show(r.Error), name)
		}
	}
}

// callerLimited checks that one caller gets thirty of forty KeyPackages and is then limited.
// Another caller is still served.
func callerLimited(ctx context.Context, w *testbed.World, callers []*client.Phone) {
	owner := Must(w.Phone("popular"))
	Check(owner.PublishMany(ctx, callerLimit+10, false))
	for i := range callerLimit {
		out := take(ctx, w, callers[0], owner)
		served(w, fmt.Sprintf("claim %d of one caller", i), owner, out, 1, 0, false, false)
	}
	out := take(ctx, w, callers[0], owner)
	served(w, "a claim beyond the limit", owner, out, 0, 0, slices.Contains(out.Missing, owner.Account.DID), true)
	out = take(ctx, w, callers[1], owner)
	served(w, "a claim of another caller", owner, out, 1, 0, false, false)
	stands(ctx, w, "claimed by two", owner, 9, callerLimit+1, 0)
}
