package clientsim

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// callerLimit is how many KeyPackages for one use of one device one caller is
// handed within a day.
const callerLimit = 30

// KeysExhausted uses up accounts' KeyPackages: one then serves its last-resort
// one, as often as it is asked, and one is missing. Their owners are told to
// refill, do so in one request, in which not everything is right, and are
// claimed from again. One caller alone cannot use up an account.
func KeysExhausted(ctx context.Context, w *World) error {
	callers, err := w.Phones(ctx, 6)
	if err != nil {
		return err
	}
	for _, do := range []func(context.Context, []*Phone) error{w.lastResorts, w.missingAndRefilled, w.callerLimited} {
		if err := do(ctx, callers); err != nil {
			return err
		}
	}
	return nil
}

// take has a caller claim from one account.
func (w *World) take(ctx context.Context, caller, owner *Phone) (*mlsapi.GetKeyPackagesOutput, error) {
	return caller.claimAny(ctx, claimCall([]syntax.DID{owner.Account.DID}, w.suite, "", newKey()))
}

// served: a claim got this many KeyPackages for one use and of last resort, and
// the account stands among the missing and the limited or not.
func (w *World) served(what string, owner *Phone, out *mlsapi.GetKeyPackagesOutput, oneTime, last int, missing, limited bool) {
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

// stands: an account's own counts are these.
func (w *World) stands(ctx context.Context, what string, owner *Phone, available, claimed, lastResort int64) (*mlsapi.GetKeyPackageStatsOutput, error) {
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

// lastResorts: six callers, four KeyPackages and a last-resort one. Whoever got
// that one adds the owner with it all the same, more than once.
func (w *World) lastResorts(ctx context.Context, callers []*Phone) error {
	owner, err := w.Phone("owner")
	if err != nil {
		return err
	}
	if err := owner.Stock(ctx, 4, true); err != nil {
		return err
	}
	if _, err := w.stands(ctx, "freshly published", owner, 4, 0, 1); err != nil {
		return err
	}
	var shared [][]byte
	for i, caller := range callers {
		out, err := w.take(ctx, caller, owner)
		if err != nil {
			return err
		}
		once, last := 1, 0
		if i >= 4 {
			once, last = 0, 1
		}
		w.served(fmt.Sprintf("claim %d", i), owner, out, once, last, false, false)
		if i >= 4 && len(out.KeyPackages) > 0 {
			shared = append(shared, out.KeyPackages[0].KeyPackage)
		}
	}
	if _, err := w.stands(ctx, "used up", owner, 0, 4, 1); err != nil {
		return err
	}
	if len(shared) != 2 || !bytes.Equal(shared[0], shared[1]) {
		w.Broken("two claims of a last-resort KeyPackage got different ones")
		return nil
	}
	for i, kp := range shared {
		adder := callers[4+i]
		d, err := adder.DraftCreate(dids([]*Phone{owner}), [][]byte{kp})
		if err != nil {
			return err
		}
		answer, err := adder.Deliver(ctx, d)
		if err != nil {
			return err
		}
		convo, err := mlsapi.DecodeCreateConvoOutput(answer.Body)
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
	_, err = w.stands(ctx, "of last resort used twice", owner, 0, 4, 1)
	return err
}

// missingAndRefilled: an account without a last-resort KeyPackage has nothing
// left, and refills.
func (w *World) missingAndRefilled(ctx context.Context, callers []*Phone) error {
	owner, err := w.Phone("refiller")
	if err != nil {
		return err
	}
	stats, err := w.stands(ctx, "nothing published", owner, 0, 0, 0)
	if err != nil {
		return err
	}
	if err := owner.Stock(ctx, 2, false); err != nil {
		return err
	}
	for i, caller := range callers[:3] {
		out, err := w.take(ctx, caller, owner)
		if err != nil {
			return err
		}
		once := min(max(2-i, 0), 1)
		w.served(fmt.Sprintf("claim %d of two", i), owner, out, once, 0, once == 0, false)
	}
	if err := w.refill(ctx, owner, int(stats.Threshold)); err != nil {
		return err
	}
	if _, err := w.stands(ctx, "refilled", owner, stats.Threshold, 2, 0); err != nil {
		return err
	}
	out, err := w.take(ctx, callers[3], owner)
	if err != nil {
		return err
	}
	w.served("a claim after the refill", owner, out, 1, 0, false, false)
	return nil
}

// refill publishes n good KeyPackages in one request, with one of them twice, a
// broken one and another's among them. The answer is lost the first time.
func (w *World) refill(ctx context.Context, owner *Phone, n int) error {
	var batch []KeyPackage
	var want []string
	for range n {
		kp, err := owner.device.KeyPackage()
		if err != nil {
			return err
		}
		batch, want = append(batch, kp), append(want, mlsapi.ResultStatusPublished)
	}
	broken, err := breakLeaf(owner.device)
	if err != nil {
		return err
	}
	mask, err := NewDevice("did:plc:somebodyelse", w.suite)
	if err != nil {
		return err
	}
	foreign, err := mask.KeyPackage()
	if err != nil {
		return err
	}
	batch = append(batch, batch[0], broken, foreign)
	want = append(want, mlsapi.ResultStatusDuplicate, mlsapi.ResultStatusRejected, mlsapi.ResultStatusRejected)
	d, err := owner.DraftStock(batch)
	if err != nil {
		return err
	}
	answer, err := w.deliverReplay(ctx, owner, "publishKeyPackages", d)
	if err != nil {
		return err
	}
	out, err := mlsapi.DecodePublishKeyPackagesOutput(answer.Body)
	if err != nil {
		return err
	}
	if len(out.Results) != len(want) {
		return fmt.Errorf("publishKeyPackages: %d results for %d KeyPackages", len(out.Results), len(want))
	}
	for i, r := range out.Results {
		if r.Status != want[i] {
			w.Broken("publishKeyPackages: KeyPackage %d is %s, want %s (%s)", i, r.Status, want[i], show(r.Message))
		}
		name := mlsapi.ErrInvalidKeyPackage
		if rejected := r.Status == mlsapi.ResultStatusRejected; rejected && show(r.Error) != show(&name) {
			w.Broken("publishKeyPackages: KeyPackage %d is rejected with %s, want %s", i, show(r.Error), name)
		}
	}
	return nil
}

// callerLimited: one caller is handed thirty of forty, and is then told that it
// has had enough, while another is served.
func (w *World) callerLimited(ctx context.Context, callers []*Phone) error {
	owner, err := w.Phone("popular")
	if err != nil {
		return err
	}
	if err := owner.Stock(ctx, callerLimit+10, false); err != nil {
		return err
	}
	for i := range callerLimit {
		out, err := w.take(ctx, callers[0], owner)
		if err != nil {
			return err
		}
		w.served(fmt.Sprintf("claim %d of one caller", i), owner, out, 1, 0, false, false)
	}
	out, err := w.take(ctx, callers[0], owner)
	if err != nil {
		return err
	}
	w.served("a claim beyond the limit", owner, out, 0, 0, slices.Contains(out.Missing, owner.Account.DID), true)
	if out, err = w.take(ctx, callers[1], owner); err != nil {
		return err
	}
	w.served("a claim of another caller", owner, out, 1, 0, false, false)
	_, err = w.stands(ctx, "claimed by two", owner, 9, callerLimit+1, 0)
	return err
}
