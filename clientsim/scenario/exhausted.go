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
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// callerLimit is how many one-time KeyPackages of one device one caller gets within a day.
const callerLimit = 30

// KeysExhausted uses up accounts' KeyPackages. One account then serves its last-resort one, and one
// has none left. The owners publish new ones in one request that also has faulty ones. One caller
// alone cannot use up an account.
func KeysExhausted(ctx context.Context, w *testbed.World) error {
	callers, err := w.Phones(ctx, 6)
	if err != nil {
		return err
	}
	if err := lastResorts(ctx, w, callers); err != nil {
		return err
	}
	if err := missingAndRefilled(ctx, w, callers); err != nil {
		return err
	}
	return callerLimited(ctx, w, callers)
}

// take makes a caller claim from one account.
func take(ctx context.Context, w *testbed.World, caller, owner *client.Phone) (*mlsapi.GetKeyPackagesOutput, error) {
	return caller.ClaimAny(ctx, xrpc.ClaimCall([]syntax.DID{owner.Account.DID}, w.Suite, "", xrpc.NewKey()))
}

// served checks what a claim got: how many one-time and last-resort KeyPackages, and whether the
// account is listed as missing or limited.
func served(w *testbed.World, what string, owner *client.Phone, out *mlsapi.GetKeyPackagesOutput, oneTime, last int, missing, limited bool) {
	gotOnce, gotLast := 0, 0
	for _, kp := range out.KeyPackages {
		if *kp.LastResort {
			gotLast++
		} else {
			gotOnce++
		}
	}
	isMissing, isLimited := slices.Contains(out.Missing, owner.Account.DID), slices.Contains(out.Limited, owner.Account.DID)
	if gotOnce != oneTime || gotLast != last || isMissing != missing || isLimited != limited {
		w.Broken("%s: %d for one use, %d of last resort, missing %t, limited %t; want %d, %d, %t, %t",
			what, gotOnce, gotLast, isMissing, isLimited, oneTime, last, missing, limited)
	}
}

// stands checks an account's own counts.
func stands(ctx context.Context, w *testbed.World, what string, owner *client.Phone, available, claimed, lastResort int64) (*mlsapi.GetKeyPackageStatsOutput, error) {
	stats, err := owner.Stats(ctx)
	if err != nil {
		return nil, err
	}
	if stats.Available != available || stats.Claimed != claimed || stats.LastResort != lastResort {
		w.Broken("%s: %d available, %d claimed, %d of last resort; want %d, %d, %d",
			what, stats.Available, stats.Claimed, stats.LastResort, available, claimed, lastResort)
	}
	if want := available < stats.Threshold; stats.NeedsReplenish != want {
		w.Broken("%s: %d available of at least %d, and needsReplenish is %t", what, available, stats.Threshold, stats.NeedsReplenish)
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
	return stats, nil
}

// lastResorts lets six callers claim four KeyPackages and a last-resort one. The last-resort one
// adds the owner several times.
func lastResorts(ctx context.Context, w *testbed.World, callers []*client.Phone) error {
	owner, err := w.Phone("owner")
	if err != nil {
		return err
	}
	if err := owner.PublishMany(ctx, 4, true); err != nil {
		return err
	}
	if _, err := stands(ctx, w, "freshly published", owner, 4, 0, 1); err != nil {
		return err
	}
	var shared [][]byte
	for i, caller := range callers {
		out, err := take(ctx, w, caller, owner)
		if err != nil {
			return err
		}
		once, last := 1, 0
		if i >= 4 {
			once, last = 0, 1
		}
		served(w, fmt.Sprintf("claim %d", i), owner, out, once, last, false, false)
		if i >= 4 && len(out.KeyPackages) > 0 {
			shared = append(shared, out.KeyPackages[0].KeyPackage)
		}
	}
	if _, err := stands(ctx, w, "used up", owner, 0, 4, 1); err != nil {
		return err
	}
	if len(shared) != 2 || !bytes.Equal(shared[0], shared[1]) {
		w.Broken("two claims of a last-resort KeyPackage got different ones")
		return nil
	}
	for i, kp := range shared {
		adder := callers[4+i]
		d, err := adder.DraftCreate(testbed.DIDs([]*client.Phone{owner}), [][]byte{kp})
		if err != nil {
			return err
		}
		answer, err := adder.Deliver(ctx, d)
		if err != nil {
			return err
		}
		convo, err := xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body)
		if err != nil {
			return err
		}
		if err := owner.Join(ctx, convo.ID); err != nil {
			return err
		}
		if err := owner.Send(ctx, convo.ID, fmt.Sprintf("of last resort, %d", i)); err != nil {
			return err
		}
	}
	_, err = stands(ctx, w, "of last resort used twice", owner, 0, 4, 1)
	return err
}

// missingAndRefilled uses up an account without a last-resort KeyPackage, and then refills it.
func missingAndRefilled(ctx context.Context, w *testbed.World, callers []*client.Phone) error {
	owner, err := w.Phone("refiller")
	if err != nil {
		return err
	}
	stats, err := stands(ctx, w, "nothing published", owner, 0, 0, 0)
	if err != nil {
		return err
	}
	if err := owner.PublishMany(ctx, 2, false); err != nil {
		return err
	}
	for i, caller := range callers[:3] {
		out, err := take(ctx, w, caller, owner)
		if err != nil {
			return err
		}
		once := min(max(2-i, 0), 1)
		served(w, fmt.Sprintf("claim %d of two", i), owner, out, once, 0, once == 0, false)
	}
	if err := refill(ctx, w, owner, int(stats.Threshold)); err != nil {
		return err
	}
	if _, err := stands(ctx, w, "refilled", owner, stats.Threshold, 2, 0); err != nil {
		return err
	}
	out, err := take(ctx, w, callers[3], owner)
	if err != nil {
		return err
	}
	served(w, "a claim after the refill", owner, out, 1, 0, false, false)
	return nil
}

// refill publishes n good KeyPackages in one request, with a duplicate, a broken one and another
// account's among them. The first answer is lost.
func refill(ctx context.Context, w *testbed.World, owner *client.Phone, n int) error {
	var batch []mlsclient.KeyPackage
	var want []string
	for range n {
		kp, err := owner.Device.KeyPackage()
		if err != nil {
			return err
		}
		batch, want = append(batch, kp), append(want, mlsapi.ResultStatusPublished)
	}
	broken, err := mlsclient.BreakLeaf(owner.Device)
	if err != nil {
		return err
	}
	mask, err := mlsclient.NewDevice("did:plc:somebodyelse", w.Suite)
	if err != nil {
		return err
	}
	foreign, err := mask.KeyPackage()
	if err != nil {
		return err
	}
	batch = append(batch, batch[0], broken, foreign)
	want = append(want, mlsapi.ResultStatusDuplicate, mlsapi.ResultStatusRejected, mlsapi.ResultStatusRejected)
	d, err := owner.DraftPublishMany(batch)
	if err != nil {
		return err
	}
	answer, err := w.DeliverWithLostAnswer(ctx, owner, "publishKeyPackages", d)
	if err != nil {
		return err
	}
	out, err := xrpc.Decode[mlsapi.PublishKeyPackagesOutput](answer.Body)
	if err != nil {
		return err
	}
	if len(out.Results) != len(want) {
		return fmt.Errorf("publishKeyPackages: %d results for %d KeyPackages", len(out.Results), len(want))
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
	return nil
}

// callerLimited checks that one caller gets thirty of forty and is then limited, while another
// caller is still served.
func callerLimited(ctx context.Context, w *testbed.World, callers []*client.Phone) error {
	owner, err := w.Phone("popular")
	if err != nil {
		return err
	}
	if err := owner.PublishMany(ctx, callerLimit+10, false); err != nil {
		return err
	}
	for i := range callerLimit {
		out, err := take(ctx, w, callers[0], owner)
		if err != nil {
			return err
		}
		served(w, fmt.Sprintf("claim %d of one caller", i), owner, out, 1, 0, false, false)
	}
	out, err := take(ctx, w, callers[0], owner)
	if err != nil {
		return err
	}
	served(w, "a claim beyond the limit", owner, out, 0, 0, slices.Contains(out.Missing, owner.Account.DID), true)
	if out, err = take(ctx, w, callers[1], owner); err != nil {
		return err
	}
	served(w, "a claim of another caller", owner, out, 1, 0, false, false)
	_, err = stands(ctx, w, "claimed by two", owner, 9, callerLimit+1, 0)
	return err
}
