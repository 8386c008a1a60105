package keypackages

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/mls"
)

// Publication is a KeyPackage as its owner offers it.
type Publication struct {
	Owner       syntax.DID
	Body        []byte
	CipherSuite mls.CipherSuite
	Expires     *time.Time // nil: the KeyPackage's own lifetime; the earlier of the two counts
	Key         string     // the client's idempotency key if it names this publication alone, else ""
	Hash        [sha256.Size]byte
}

// Published is what became of a publication.
type Published struct {
	Ref       mls.KeyPackageRef // nil if Err is not
	Duplicate bool              // the same KeyPackage was published before
	Err       error             // *InvalidError, ErrTooMany or ErrExpirationTooFar: it is not stored
}

// Publish is PublishAll for one. Its errors are also those of Published.
func Publish(ctx context.Context, tx pgx.Tx, p Publication) (mls.KeyPackageRef, error) {
	published, err := PublishAll(ctx, tx, []Publication{p})
	if err != nil {
		return nil, err
	}
	return published[0].Ref, published[0].Err
}

// PublishAll judges each publication, all of one owner, on its own and makes the good ones available. Publishing the same
// KeyPackage again changes nothing, whatever has become of it: its KeyPackageRef is the natural guard.
func PublishAll(ctx context.Context, tx pgx.Tx, batch []Publication) ([]Published, error) {
	out := make([]Published, len(batch))
	checks := make([]checked, len(batch))
	var initKeys [][]byte
	for i, p := range batch { // the signatures are verified before anybody has to wait for a lock
		if checks[i], out[i].Err = check(p); out[i].Err == nil {
			initKeys = append(initKeys, checks[i].kp.InitKey)
		}
	}
	if len(initKeys) == 0 {
		return out, nil
	}
	h, err := holdings(ctx, tx, batch[0].Owner, initKeys)
	if err != nil {
		return nil, err
	}
	var fresh []offer
	for i, c := range checks {
		if out[i].Err == nil {
			out[i].Err = c.at(h.now)
		}
		if out[i].Err != nil {
			continue
		}
		if out[i] = h.admit(c.kp); out[i].Err == nil && !out[i].Duplicate {
			fresh = append(fresh, offer{batch[i], c.kp})
		}
	}
	return out, insert(ctx, tx, fresh)
}

// checked is a KeyPackage that is good in itself, as far as that can be said without knowing the time.
type checked struct {
	Publication
	kp     *mls.KeyPackage
	forged error // of its signatures
}

// check judges the KeyPackage itself, the cheap tests first. Only the database's clock counts, so what depends on the time is left to at.
func check(p Publication) (checked, error) {
	kp, err := mls.ParseKeyPackage(p.Body)
	if err != nil {
		return checked{}, &InvalidError{Reason: err.Error()}
	}
	c := checked{Publication: p, kp: kp}
	if c.fits() == nil {
		c.forged = kp.VerifySignatures()
	}
	return c, nil
}

// fits judges whether the KeyPackage is what its publisher may publish.
func (c checked) fits() error {
	switch {
	case c.kp.CipherSuite != c.CipherSuite:
		return &InvalidError{Reason: fmt.Sprintf("cipherSuite: the KeyPackage is of %s", c.kp.CipherSuite)}
	case !c.kp.BelongsTo(c.Owner.String()):
		return &InvalidError{Reason: "credential: its identity is not the publisher's DID"}
	}
	return nil
}

// at judges the KeyPackage at the moment that it comes in.
func (c checked) at(now time.Time) error {
	switch {
	case c.Expires != nil && c.Expires.Sub(now) > MaxLifetime:
		return ErrExpirationTooFar
	case c.Expires != nil && !c.Expires.After(now):
		return &InvalidError{Reason: "expires: in the past"}
	}
	if err := c.fits(); err != nil {
		return err
	}
	if err := c.kp.Check(now); err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	if c.forged != nil {
		return &InvalidError{Reason: c.forged.Error()}
	}
	return nil
}

// held is what an owner has, as far as it decides about more.
type held struct {
	now       time.Time                    // by the database's clock
	initKeys  map[string]mls.KeyPackageRef // of those asked about: the KeyPackage that each came with
	available int
	unclaimed int
}

// holdings locks out the owner's other publications, and looks. One publisher at a time: the bounds hold, and two with one
// init_key cannot pass each other.
func holdings(ctx context.Context, tx pgx.Tx, owner syntax.DID, initKeys [][]byte) (held, error) {
	h := held{initKeys: map[string]mls.KeyPackageRef{}}
	var b pgx.Batch
	b.Queue(lockOwners, []syntax.DID{owner})
	b.Queue(`SELECT init_key, ref FROM key_package_init_keys WHERE did = $1 AND init_key = ANY($2)`, owner, initKeys).
		Query(func(rows pgx.Rows) error {
			var initKey, ref []byte
			_, err := pgx.ForEachRow(rows, []any{&initKey, &ref}, func() error {
				h.initKeys[string(initKey)] = ref
				return nil
			})
			return err
		})
	b.Queue(`
		SELECT count(*) FILTER (WHERE state = 'available' AND not_after > clock_timestamp()), count(*), clock_timestamp()
		FROM key_packages WHERE did = $1 AND state IN ('available', 'expired')`, owner).
		QueryRow(func(row pgx.Row) error { return row.Scan(&h.available, &h.unclaimed, &h.now) })
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return held{}, fmt.Errorf("look at the owner's KeyPackages: %w", err)
	}
	return h, nil
}

// admit decides about a KeyPackage that is good in itself, and counts it if it comes in.
func (h *held) admit(kp *mls.KeyPackage) Published {
	switch ref, used := h.initKeys[string(kp.InitKey)]; {
	case used && ref.String() == kp.Ref.String():
		return Published{Ref: kp.Ref, Duplicate: true}
	case used:
		return Published{Err: &InvalidError{Reason: "init_key: used by another KeyPackage before (RFC 9420 §10)"}}
	case h.available >= MaxAvailable || h.unclaimed >= MaxUnclaimed:
		return Published{Err: ErrTooMany}
	}
	h.initKeys[string(kp.InitKey)] = kp.Ref
	h.available++
	h.unclaimed++
	return Published{Ref: kp.Ref}
}

// offer is a publication that is admitted.
type offer struct {
	Publication
	kp *mls.KeyPackage
}

// notAfter is when to stop handing it out.
func (o offer) notAfter() time.Time {
	if o.Expires != nil && o.Expires.Before(o.kp.NotAfter) {
		return *o.Expires
	}
	return o.kp.NotAfter
}

func insert(ctx context.Context, tx pgx.Tx, fresh []offer) error {
	if len(fresh) == 0 {
		return nil
	}
	n := len(fresh)
	refs, initKeys, bodies, hashes := make([][]byte, n), make([][]byte, n), make([][]byte, n), make([][]byte, n)
	devices, keys := make([]string, n), make([]string, n)
	suites, notAfter, lastResort := make([]int32, n), make([]time.Time, n), make([]bool, n)
	for i, o := range fresh {
		refs[i], initKeys[i], bodies[i], hashes[i] = o.kp.Ref, o.kp.InitKey, o.Body, o.Hash[:]
		devices[i], keys[i] = o.kp.DeviceID(), o.Key
		suites[i], notAfter[i], lastResort[i] = int32(o.kp.CipherSuite), o.notAfter(), o.kp.LastResort
	}
	owner := fresh[0].Owner
	var b pgx.Batch
	b.Queue(`
		WITH tombstone AS (
			INSERT INTO key_package_init_keys (did, ref, init_key) SELECT $1, * FROM unnest($2::bytea[], $3::bytea[])
		)
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, idempotency_key, request_hash,
			created_at)
		SELECT $1, ref, device_id, cipher_suite, body, not_after, last_resort, nullif(key, ''), CASE WHEN key <> '' THEN hash END,
			clock_timestamp()
		FROM unnest($2::bytea[], $4::text[], $5::integer[], $6::bytea[], $7::timestamptz[], $8::boolean[], $9::text[], $10::bytea[])
			AS o (ref, device_id, cipher_suite, body, not_after, last_resort, key, hash)`,
		owner, refs, initKeys, devices, suites, bodies, notAfter, lastResort, keys, hashes)
	b.Queue(closeSignals, owner, devices, suites, Threshold)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("insert the KeyPackages: %w", err)
	}
	return nil
}
