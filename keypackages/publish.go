package keypackages

import (
	"context"
	"crypto/sha256"
	"errors"
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
	Key         string     // the client's idempotency key, or ""
	Hash        [sha256.Size]byte
}

// Publish checks p and makes it available. Publishing the same KeyPackage again changes nothing, whatever has become of it:
// its KeyPackageRef is the natural guard. Errors: *InvalidError, ErrTooMany, ErrExpirationTooFar.
func Publish(ctx context.Context, tx pgx.Tx, p Publication) (mls.KeyPackageRef, error) {
	kp, err := mls.ParseKeyPackage(p.Body)
	if err != nil {
		return nil, &InvalidError{Reason: err.Error()}
	}
	now, err := clock(ctx, tx)
	if err != nil {
		return nil, err
	}
	if err := check(kp, p, now); err != nil {
		return nil, err
	}
	// One publisher at a time: the bound on the number holds, and two with one init_key cannot pass each other.
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "key_packages:"+p.Owner.String()); err != nil {
		return nil, fmt.Errorf("lock the owner's KeyPackages: %w", err)
	}
	held, err := holder(ctx, tx, p.Owner, kp.InitKey)
	if err != nil {
		return nil, err
	}
	switch {
	case held == nil:
	case held.String() == kp.Ref.String():
		return kp.Ref, nil
	default:
		return nil, &InvalidError{Reason: "init_key: used by another KeyPackage before (RFC 9420 §10)"}
	}
	return kp.Ref, insert(ctx, tx, kp, p)
}

// check judges the KeyPackage itself, the cheap tests first.
func check(kp *mls.KeyPackage, p Publication, now time.Time) error {
	if p.Expires != nil && p.Expires.Sub(now) > MaxLifetime {
		return ErrExpirationTooFar
	}
	if p.Expires != nil && !p.Expires.After(now) {
		return &InvalidError{Reason: "expires: in the past"}
	}
	if kp.CipherSuite != p.CipherSuite {
		return &InvalidError{Reason: fmt.Sprintf("cipherSuite: the KeyPackage is of %s", kp.CipherSuite)}
	}
	if !kp.BelongsTo(p.Owner.String()) {
		return &InvalidError{Reason: "credential: its identity is not the publisher's DID"}
	}
	if err := kp.Check(now); err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	if err := kp.VerifySignatures(); err != nil {
		return &InvalidError{Reason: err.Error()}
	}
	return nil
}

func clock(ctx context.Context, tx pgx.Tx) (now time.Time, err error) {
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return now, fmt.Errorf("read the database's clock: %w", err)
	}
	return now, nil
}

// holder returns the ref of the KeyPackage that init_key came with, or nil if it is new.
func holder(ctx context.Context, tx pgx.Tx, owner syntax.DID, initKey []byte) (ref mls.KeyPackageRef, err error) {
	err = tx.QueryRow(ctx, `SELECT ref FROM key_package_init_keys WHERE did = $1 AND init_key = $2`, owner, initKey).Scan(&ref)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up the init_key: %w", err)
	}
	return ref, nil
}

func insert(ctx context.Context, tx pgx.Tx, kp *mls.KeyPackage, p Publication) error {
	notAfter := kp.NotAfter
	if p.Expires != nil && p.Expires.Before(notAfter) {
		notAfter = *p.Expires
	}
	var key *string
	if p.Key != "" {
		key = &p.Key
	}
	tag, err := tx.Exec(ctx, `
		WITH owned AS (
			SELECT count(*) AS n FROM key_packages
			WHERE did = $1 AND state = 'available' AND not_after > clock_timestamp()
		), tombstone AS (
			INSERT INTO key_package_init_keys (did, init_key, ref) SELECT $1, $3, $2 FROM owned WHERE owned.n < $4
		)
		INSERT INTO key_packages (did, ref, device_id, cipher_suite, body, not_after, last_resort, idempotency_key, request_hash,
			created_at)
		SELECT $1, $2, $5, $6, $7, $8, $9, $10, $11, clock_timestamp() FROM owned WHERE owned.n < $4`,
		p.Owner, []byte(kp.Ref), kp.InitKey, MaxAvailable, kp.DeviceID(), int32(kp.CipherSuite), p.Body, notAfter, kp.LastResort,
		key, p.Hash[:])
	if err != nil {
		return fmt.Errorf("insert the KeyPackage: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrTooMany
	}
	return nil
}
