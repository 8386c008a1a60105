package api_test

import (
	"encoding/hex"
	"net/http"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
)

// After a withdrawal nobody gets the device's KeyPackages, and the claim of one is worth nothing.
// KeyPackages of other devices and other people stay.
func TestWithdrawKeyPackages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, mallory := w.user(), w.user(), w.user()
	other := bob.publish()
	withdraw := func(u *user, in *mlsapi.WithdrawKeyPackagesInput) int64 {
		t.Helper()
		return read[mlsapi.WithdrawKeyPackagesOutput](t, u.post(mlsapi.NSIDWithdrawKeyPackages, in).ok()).Withdrawn
	}
	left := func() int {
		t.Helper()
		return len(read[mlsapi.GetKeyPackagesOutput](t,
			mallory.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String()).ok()).KeyPackages)
	}
	in := alice.creation(newGroup(t), bob) // claims one of bob's
	first, last := bob.publish(), bob.publish(mlstest.LastResort)

	if n := withdraw(mallory,
		&mlsapi.WithdrawKeyPackagesInput{DeviceID: bob.deviceID(), KeyPackageRefs: []string{first.String()}}); n != 0 {
		t.Errorf("an outsider has withdrawn %d of bob's", n)
	}
	if n := withdraw(bob, &mlsapi.WithdrawKeyPackagesInput{DeviceID: bob.deviceID(),
		KeyPackageRefs: []string{"not hexadecimal"}}); n != 0 {
		t.Errorf("%d withdrawn by what is no ref", n)
	}
	if n := withdraw(bob, &mlsapi.WithdrawKeyPackagesInput{DeviceID: "another device",
		KeyPackageRefs: []string{first.String(), "ffff"}}); n != 0 {
		t.Errorf("%d of another device", n)
	}
	if n := withdraw(bob, &mlsapi.WithdrawKeyPackagesInput{DeviceID: bob.deviceID(),
		KeyPackageRefs: []string{first.String(), "ffff"}}); n != 1 {
		t.Errorf("%d withdrawn by their refs, want 1", n)
	}
	if n := left(); n != 1 {
		t.Errorf("%d left, want the one of last resort or the first", n)
	}
	// Left are the claimed ones, the other and that of last resort.
	if n := withdraw(bob, &mlsapi.WithdrawKeyPackagesInput{DeviceID: bob.deviceID()}); n < 3 {
		t.Errorf("%d withdrawn by their device", n)
	}
	if n := withdraw(bob, &mlsapi.WithdrawKeyPackagesInput{DeviceID: bob.deviceID()}); n != 0 {
		t.Errorf("%d withdrawn a second time", n)
	}
	if n := left(); n != 0 {
		t.Errorf("%d left of %s, %s, %s", n, other, first, last)
	}
	alice.post(mlsapi.NSIDCreateConvo, in).fails(http.StatusBadRequest, mlsapi.ErrInvalidWelcome)
	if n := w.count(`SELECT count(*) FROM audit_log WHERE entity = 'key_package' AND entity_id = $1 AND to_state =
			'expired' AND reason = $2`,
		hex.EncodeToString(first), "withdrawKeyPackages"); n != 1 {
		t.Errorf("%d lines of the audit log", n)
	}
}
