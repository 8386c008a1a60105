package api_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
)

// own lists the user's KeyPackages by pages of two, as ref and state. params are pairs of name and
// value.
func (u *user) own(params ...string) (states map[string]string) {
	u.w.t.Helper()
	states = map[string]string{}
	var refs []string
	for cursor := ""; ; {
		page := append([]string{"limit", "2"}, params...)
		if cursor != "" {
			page = append(page, "cursor", cursor)
		}
		out := read[mlsapi.GetOwnKeyPackagesOutput](u.w.t, u.get(mlsapi.NSIDGetOwnKeyPackages, page...).ok())
		for _, k := range out.KeyPackages {
			refs = append(refs, k.KeyPackageRef)
			states[k.KeyPackageRef] = k.State
		}
		if out.Cursor == nil {
			break
		}
		cursor = *out.Cursor
	}
	if !slices.IsSorted(refs) || len(refs) != len(states) {
		u.w.t.Errorf("the pages list %v", refs)
	}
	return states
}

// getOwnKeyPackages says of each of the caller's KeyPackages what the ledger holds it for, and by the
// clock. So the device that holds the private keys learns which of them still matter.
func TestGetOwnKeyPackages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	bob.stock(4)
	last := bob.publish(mlstest.LastResort)
	tablet := bob.device().publish()
	alice.create(bob) // claims one and uses it
	alice.claimed(bob)
	lapsed := alice.claimed(bob)
	pgtest.Age(t, w.db, "key_packages", time.Hour, "claim_expires_at")
	fresh := carol.claimed(bob)

	states := bob.own()
	count := map[string]int{}
	for _, state := range states {
		count[state]++
	}
	stats := bob.stats()
	if want := (map[string]int{"available": int(stats.Available + stats.LastResort), "claimed": int(stats.Claimed),
		"consumed": int(stats.Consumed), "orphaned": int(*stats.Orphaned)}); !maps.Equal(count, want) {
		t.Errorf("listed %v, counted %v", count, want)
	}
	for what, c := range map[string]struct {
		ref   string
		state string
	}{
		"last resort":       {last.String(), "available"},
		"lapsed claim":      {*lapsed.KeyPackages[0].KeyPackageRef, "orphaned"},
		"claim":             {*fresh.KeyPackages[0].KeyPackageRef, "claimed"},
		"of another device": {tablet.String(), states[tablet.String()]},
	} {
		if got, ok := states[c.ref]; !ok || got != c.state {
			t.Errorf("the %s is %q, want %q", what, got, c.state)
		}
	}
}

// Everybody lists their own KeyPackages only, and a device its own if it asks for them.
func TestOwnKeyPackagesAreTheCallers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bob, mallory := w.user(), w.user()
	phone, other := bob.stock(3), bob.device().publish()
	if states := mallory.own(); len(states) != 0 {
		t.Errorf("mallory lists %v", states)
	}
	ofDevice := bob.own("deviceId", bob.deviceID())
	if _, has := ofDevice[other.String()]; has || len(ofDevice) != len(phone) {
		t.Errorf("the device lists %v", ofDevice)
	}
	for _, ref := range phone {
		if ofDevice[ref.String()] != "available" {
			t.Errorf("%s is %q", ref, ofDevice[ref.String()])
		}
	}
	bob.get(mlsapi.NSIDGetOwnKeyPackages, "cursor", "x").fails(http.StatusBadRequest, mlsapi.ErrInvalidCursor)
	bob.get(mlsapi.NSIDGetOwnKeyPackages, "limit", "251").fails(http.StatusBadRequest, "InvalidRequest")
	var entry mlsapi.OwnKeyPackage
	for _, k := range read[mlsapi.GetOwnKeyPackagesOutput](t, bob.get(mlsapi.NSIDGetOwnKeyPackages).ok()).KeyPackages {
		if k.KeyPackageRef == phone[0].String() {
			entry = k
		}
	}
	if entry.DeviceID != bob.deviceID() || entry.CipherSuite != mlstest.Suite.String() ||
		entry.LastResort || entry.ClaimedAt != nil {
		t.Errorf("an entry is %+v", entry)
	}
}
