package keypackages

import (
	"context"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/tombstone"
)

// Erase deletes up to limit KeyPackages of an account, with the rows that belong to them, and the
// stored init_keys of older KeyPackages. It returns the number of deleted rows. An init_key can be
// published again afterwards, because nobody can claim the KeyPackage that had it.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (int64, error) {
	var n int64
	err := tx.QueryRow(ctx, `
		WITH packages AS (
			DELETE FROM key_packages
			WHERE (did, ref) IN (SELECT did, ref FROM key_packages WHERE did = $1 ORDER BY did, ref LIMIT $2 FOR UPDATE)
			RETURNING ref
		), keys AS (
			DELETE FROM key_package_init_keys
			WHERE (did, init_key) IN (
				SELECT did, init_key FROM key_package_init_keys i
				WHERE did = $1 AND NOT EXISTS (
					SELECT FROM key_packages k WHERE k.did = $1 AND k.ref = i.ref AND k.ref NOT IN (SELECT ref FROM packages))
				LIMIT $2)
			RETURNING ref
		), signals AS (
			DELETE FROM key_package_signals
			WHERE (did, device_id, cipher_suite, kind) IN (
				SELECT did, device_id, cipher_suite, kind FROM key_package_signals WHERE did = $1 LIMIT $2)
			RETURNING did
		)
		SELECT (SELECT count(*) FROM packages) + (SELECT count(*) FROM keys) + (SELECT count(*) FROM signals)`, p.DID,
		limit).Scan(&n)
	return n, errs.Wrap(err, "erase KeyPackages")
}

// EraseClaims puts the tombstone of a person into up to limit KeyPackages of others that the person
// has claimed.
func EraseClaims(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (int64, error) {
	tag, err := tx.Exec(ctx, `
		UPDATE key_packages SET claimed_by = $3
		WHERE ctid = ANY(ARRAY(SELECT ctid FROM key_packages WHERE claimed_by = $1 LIMIT $2 FOR UPDATE))`,
		p.DID.String(), limit, p.Anywhere())
	return tag.RowsAffected(), errs.Wrap(err, "erase a name from claims")
}
