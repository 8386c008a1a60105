package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/keypackages"
	"mlsd/operator/invariants"
)

// H7: the record of a claim held the whole answer, so that a request of 1 kB stored 2.6 MB. It holds
// 32 bytes of each KeyPackage, and the retry still gets the first answer, byte for byte, also after
// the claim has ended.
func TestClaimRecordIsSmall(t *testing.T) {
	t.Parallel()
	const devices = 10
	w := newWorld(t)
	alice, bob, carol, without := w.user(), w.user(), w.user(), w.user()
	bob.publish()
	for range devices - 1 {
		bob.device().publish()
	}
	carol.publish(mlstest.LastResort)
	claim := []string{"dids", bob.did().String(), "dids", carol.did().String(), "dids", without.did().String(),
		"idempotencyKey", *newKey()}
	first := alice.get(mlsapi.NSIDGetKeyPackages, claim...)
	if out := read[mlsapi.GetKeyPackagesOutput](t, first.ok()); len(out.KeyPackages) != devices+1 ||
		len(out.Missing) != 1 {
		t.Fatalf("claimed %+v", out)
	}
	stored := w.count(`SELECT sum(octet_length(response)) FROM idempotency_keys WHERE nsid = $1`,
		mlsapi.NSIDGetKeyPackages)
	if most := 200 + 60*(devices+1); stored > most {
		t.Errorf("the record of a claim of %d KeyPackages has %d bytes, of an answer of %d; at most %d are expected",
			devices+1, stored, len(first.body), most)
	}
	retry := func() { alice.get(mlsapi.NSIDGetKeyPackages, claim...).replays(first) }
	retry()
	pgtest.Age(t, w.db, "key_packages", keypackages.KeepEnded-time.Minute, "claimed_at")
	w.exec(`UPDATE key_packages SET state = 'orphaned' WHERE state = 'claimed'`)
	w.sweepKeyPackages()
	retry()
}

// The check of the promises reads the record of a claim: it notices that a KeyPackage of the answer
// has another claimer, or is gone. A claim that got nothing is no violation.
func TestClaimRecordIsChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	bob.publish()
	alice.claimed(bob)
	alice.claimed(bob)
	w.check()
	for _, sql := range []string{`UPDATE key_packages SET claimed_by = 'did:plc:mallory'`, `DELETE FROM key_packages`} {
		w.exec(`CREATE TABLE kept AS SELECT * FROM key_packages`)
		w.exec(sql)
		violations, err := invariants.Check(t.Context(), w.db)
		if err != nil || !strings.Contains(strings.Join(violations, "\n"), "a one-time KeyPackage has one claimer") {
			t.Errorf("after %s: %q, %v", sql, violations, err)
		}
		w.exec(`DELETE FROM key_packages`)
		w.exec(`INSERT INTO key_packages SELECT * FROM kept`)
		w.exec(`DROP TABLE kept`)
	}
}

// H7: the records of getKeyPackages last at most as long as the KeyPackages that they refer to.
func TestClaimRecordsDoNotOutliveKeyPackages(t *testing.T) {
	t.Parallel()
	days := int(keypackages.KeepEnded.Hours() / 24)
	for life, allowed := range map[int]bool{days: true, days + 1: false} {
		if _, err := api.Lifetimes().WithLives(fmt.Sprintf("getKeyPackages=%dh", 24*life)); (err == nil) != allowed {
			t.Errorf("a life of %d days: %v", life, err)
		}
	}
}

// H7: one token claimed KeyPackages again and again. It is good for one claim. A copy of that request,
// as a PDS can send it, gets the first answer, with or without a key.
func TestTokenOfAClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	bob.stock(6)
	for _, key := range []string{"", *newKey()} {
		token := alice.authorization(mlsapi.NSIDGetKeyPackages)
		get := func(key string, more ...string) answer {
			params := append([]string{"dids", bob.did().String()}, more...)
			if key != "" {
				params = append(params, "idempotencyKey", key)
			}
			return w.do(http.MethodGet, mlsapi.NSIDGetKeyPackages, query(params...), nil, token)
		}
		before := w.count(`SELECT count(*) FROM key_packages WHERE state = 'claimed'`)
		first := get(key)
		first.ok()
		get(key).replays(first)
		get(*newKey()).fails(http.StatusUnauthorized, "InvalidToken")
		if a := get(key, "cipherSuite", mlstest.Suite.String()); a.status == http.StatusOK {
			t.Errorf("with key %q, another request with the same token is answered: %s", key, a.body)
		}
		if n := w.count(`SELECT count(*) FROM key_packages WHERE state = 'claimed'`) - before; n != 1 {
			t.Errorf("with key %q, one token has claimed %d KeyPackages", key, n)
		}
	}
	answers := together(4, func(int) answer { return alice.get(mlsapi.NSIDGetKeyPackages, "dids", bob.did().String()) })
	seen := map[string]bool{}
	for _, a := range answers { // each with a token of its own
		for _, k := range read[mlsapi.GetKeyPackagesOutput](t, a.ok()).KeyPackages {
			seen[*k.KeyPackageRef] = true
		}
	}
	if len(seen) != 4 {
		t.Errorf("four claims without a key got %d KeyPackages", len(seen))
	}
}
