package migrations

import (
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
)

// Service is the service that a database belongs to.
type Service struct {
	DID  syntax.DID // "" means that no node has said it yet
	Used bool       // whether there is a convo or a KeyPackage, whose clients know the DID
	Kept bool       // whether the schema has a place for it
}

// ReadService returns the service of a database.
func ReadService(ctx context.Context, db pgpool.Queryer) (Service, error) {
	return readService(ctx, db, `
		SELECT coalesce(service, ''), EXISTS (SELECT FROM convos) OR EXISTS (SELECT FROM key_packages)
		FROM installation`)
}

// LockService does the same, and locks the answer for db, which is a transaction.
func LockService(ctx context.Context, db pgpool.Queryer) (Service, error) {
	return readService(ctx, db, `
		SELECT coalesce(service, ''), EXISTS (SELECT FROM convos) OR EXISTS (SELECT FROM key_packages)
		FROM installation FOR UPDATE`)
}

// readService returns none if the schema has no place for one yet.
func readService(ctx context.Context, db pgpool.Queryer, query string) (s Service, err error) {
	err = db.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('installation') AND attname = 'service' AND NOT
			attisdropped)`).Scan(&s.Kept)
	if err == nil && s.Kept {
		err = db.QueryRow(ctx, query).Scan(&s.DID, &s.Used)
	}
	return s, errs.Wrap(err, "read whose database this is")
}

// SetService gives a database to a service.
func SetService(ctx context.Context, db pgpool.Execer, did syntax.DID) error {
	if _, err := db.Exec(ctx, `UPDATE installation SET service = nullif($1, '')`, did); err != nil {
		return fmt.Errorf("record whose database this is: %w", err)
	}
	return nil
}

// ReadServiceKey returns the public key that the service signs with for other services, as a
// Multikey; "" means that none was made yet.
func ReadServiceKey(ctx context.Context, db pgpool.Queryer) (key string, err error) {
	err = db.QueryRow(ctx, `SELECT coalesce(service_key, '') FROM installation`).Scan(&key)
	return key, errs.Wrap(err, "read which key the service has")
}

// LockServiceKey does the same, and locks the answer for db, which is a transaction.
func LockServiceKey(ctx context.Context, db pgpool.Queryer) (key string, err error) {
	err = db.QueryRow(ctx, `SELECT coalesce(service_key, '') FROM installation FOR UPDATE`).Scan(&key)
	return key, errs.Wrap(err, "read which key the service has")
}

// SetServiceKey records the service's key.
func SetServiceKey(ctx context.Context, db pgpool.Execer, key string) error {
	_, err := db.Exec(ctx, `UPDATE installation SET service_key = $1`, key)
	return errs.Wrap(err, "record which key the service has")
}
