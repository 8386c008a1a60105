package accounts

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/people/sessions"
)

// Store writes the table accounts. Each write holds the lock of account_clock until its transaction
// ends, and all other writes of the Store wait for the lock. So a write belongs at the end of a
// transaction.
type Store struct {
	eraseAfter time.Duration
	handOver   HandOver
}

// HandOver runs refuse, which makes this service refuse people. It also makes others able to do
// what only these people could do. It may lock convos before it calls refuse, and not afterwards.
type HandOver func(ctx context.Context, tx pgx.Tx, dids []syntax.DID, refuse func() error) error

// Beginner begins a transaction, or a savepoint in a transaction.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// NewStore returns a store. eraseAfter is the time from the deletion of an account to the erasure
// of its data. 0 means that the data is kept.
func NewStore(eraseAfter time.Duration, handOver HandOver) *Store {
	return &Store{eraseAfter, handOver}
}

// Block blocks an account. If the account is already blocked, the new operator and reason replace
// the old ones. Every node refuses the account at most a second after the commit, and the account's
// sessions end.
func (s *Store) Block(ctx context.Context, db Beginner, did syntax.DID, operator, reason string) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		return s.handOver(ctx, tx, []syntax.DID{did}, func() error { return block(ctx, tx, did, operator, reason) })
	})
}

func block(ctx context.Context, tx pgx.Tx, did syntax.DID, operator, reason string) error {
	_, err := tx.Exec(ctx, `
		WITH clock AS (UPDATE account_clock SET version = version + 1 RETURNING version)
		INSERT INTO accounts (did, blocked_at, blocked_by, blocked_reason, version)
		SELECT $1, clock_timestamp(), $2, $3, version FROM clock
		ON CONFLICT (did) DO UPDATE SET blocked_at = excluded.blocked_at, blocked_by = excluded.blocked_by,
			blocked_reason = excluded.blocked_reason, version = excluded.version`, did, operator, reason)
	if err != nil {
		return fmt.Errorf("block an account: %w", err)
	}
	return sessions.End(ctx, tx, did)
}

// Unblock takes an operator's block back. was says whether there was a block.
func (s *Store) Unblock(ctx context.Context, db pgpool.DB, did syntax.DID) (was bool, err error) {
	tag, err := db.Exec(ctx, `
		WITH clock AS (UPDATE account_clock SET version = version + 1 RETURNING version)
		UPDATE accounts SET blocked_at = NULL, blocked_by = NULL, blocked_reason = NULL, version = clock.version
		FROM clock WHERE did IN ($1, $2) AND blocked_at IS NOT NULL`, did, tombstone.Hash(did))
	return tag.RowsAffected() > 0, errs.Wrap(err, "unblock an account")
}

// Get returns an account. An account without a row is active and not blocked. A block outlives the
// erasure of the account.
func (s *Store) Get(ctx context.Context, db pgpool.DB, did syntax.DID) (Account, error) {
	a, err := s.get(ctx, db, did)
	if err != nil || a.Block != nil && a.ErasedAt != nil {
		return a, err
	}
	before, err := s.get(ctx, db, tombstone.Hash(did))
	if a.Block == nil {
		a.Block = before.Block
	}
	a.ErasedAt = before.ErasedAt
	return a, err
}

// get reads one row.
func (s *Store) get(ctx context.Context, db pgpool.DB, did syntax.DID) (Account, error) {
	a := Account{DID: did}
	var blockedAt *time.Time
	var block Block
	var percent *int
	var limit Limit
	err := db.QueryRow(ctx, `
		SELECT status, status_at, status_seq, blocked_at, coalesce(blocked_by, ''), coalesce(blocked_reason, ''), erase_after,
			erasing_at, erased_at,
			CASE WHEN limit_until <= clock_timestamp() THEN NULL ELSE limit_percent END, limit_until, coalesce(limited_at,
				'epoch'),
			coalesce(limited_by, ''), coalesce(limited_reason, '')
		FROM accounts WHERE did = $1`, did).
		Scan(&a.Status, &a.StatusAt, &a.StatusSeq, &blockedAt, &block.By, &block.Reason, &a.EraseAfter,
			&a.ErasingAt, &a.ErasedAt, &percent, &limit.Until, &limit.At, &limit.By, &limit.Reason)
	if errors.Is(err, pgx.ErrNoRows) {
		return Account{DID: did, Status: Active}, nil
	}
	if err != nil {
		return Account{}, fmt.Errorf("read an account: %w", err)
	}
	if blockedAt != nil {
		block.At = *blockedAt
		a.Block = &block
	}
	if percent != nil {
		limit.Percent = *percent
		a.Limit = &limit
	}
	return a, nil
}

// Change is what a relay states about an account.
type Change struct {
	DID    syntax.DID
	Status Status
	At     time.Time // the relay's time
	Seq    int64     // the relay's seq
}

// setStatusSQL stores what a relay states about accounts.
//
//go:embed set_status.sql
var setStatusSQL string

// SetStatus stores what the relay source states about accounts, and returns what it has stored. It
// makes no row for an account that is active, or that this service does not know (Known). A
// statement that is older than the stored one has no effect. The DIDs must differ. The sessions of
// inactive accounts end.
func (s *Store) SetStatus(ctx context.Context, db Beginner, source string, changes []Change) (stored []Change,
	err error) {
	var inactive []syntax.DID
	for _, c := range changes {
		if c.Status != Active {
			inactive = append(inactive, c.DID)
		}
	}
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		return s.handOver(ctx, tx, inactive, func() (err error) {
			stored, err = s.setStatus(ctx, tx, source, changes)
			return err
		})
	})
	return stored, err
}

func (s *Store) setStatus(ctx context.Context, tx pgx.Tx, source string, changes []Change) (stored []Change,
	err error) {
	dids, statuses, ats, seqs := make([]string, len(changes)), make([]string, len(changes)),
		make([]time.Time, len(changes)), make([]int64, len(changes))
	byDID := make(map[syntax.DID]Change, len(changes))
	for i, c := range changes {
		dids[i], statuses[i], ats[i], seqs[i] = c.DID.String(), string(c.Status), c.At, c.Seq
		byDID[c.DID] = c
	}
	var erase *time.Duration
	if s.eraseAfter > 0 {
		erase = &s.eraseAfter
	}
	known, err := pgpool.Collect(ctx, tx, pgx.RowTo[syntax.DID], setStatusSQL, pgx.NamedArgs{
		"dids": dids, "states": statuses, "times": ats, "seqs": seqs, "source": source, "erase_after": erase,
	})
	if err != nil {
		return nil, fmt.Errorf("store the states of accounts: %w", err)
	}
	var refused []syntax.DID
	for _, did := range known {
		stored = append(stored, byDID[did])
		if byDID[did].Status != Active {
			refused = append(refused, did)
		}
	}
	return stored, sessions.End(ctx, tx, refused...)
}

// Reactivate forgets what the network states about an account: every node serves the account at
// most a second after the commit, and its erasure is not due. The next statement counts again,
// whatever its time. Reactivate returns the status before. Error: ErrErasing.
func (s *Store) Reactivate(ctx context.Context, tx pgx.Tx, did syntax.DID) (was Status, err error) {
	if err := s.Lock(ctx, tx); err != nil {
		return "", err
	}
	a, err := s.get(ctx, tx, did)
	switch {
	case err != nil:
		return "", err
	case a.ErasingAt != nil:
		return "", ErrErasing
	case a.Status == Active:
		return Active, nil
	}
	_, err = tx.Exec(ctx, `
		WITH clock AS (UPDATE account_clock SET version = version + 1 RETURNING version)
		UPDATE accounts
		SET status = 'active', status_source = NULL, status_seq = NULL, status_at = NULL, erase_after = NULL,
			version = clock.version
		FROM clock WHERE did = $1`, did)
	return a.Status, errs.Wrap(err, "reactivate an account")
}

// Known returns the accounts among dids that this service knows: members of a convo, accounts that
// have a KeyPackage, a push target or a row in accounts, and accounts that have called in the last
// 30 days.
func (s *Store) Known(ctx context.Context, db pgpool.DB, dids []syntax.DID) ([]syntax.DID, error) {
	known, err := pgpool.Collect(ctx, db, pgx.RowTo[syntax.DID], `
		SELECT did FROM unnest($1::text[]) AS named (did)
		WHERE EXISTS (SELECT FROM accounts a WHERE a.did = named.did)
			OR EXISTS (SELECT FROM members m WHERE m.did = named.did AND m.left_at IS NULL)
			OR EXISTS (SELECT FROM key_packages k WHERE k.did = named.did)
			OR EXISTS (SELECT FROM push_targets t WHERE t.did = named.did)
			OR EXISTS (SELECT FROM identity_keys i WHERE i.did = named.did)`, dids)
	return known, errs.Wrap(err, "read which accounts are known")
}

// Due returns up to limit accounts whose data is due for erasure, the longest overdue first.
func (s *Store) Due(ctx context.Context, db pgpool.DB, now time.Time, limit int) ([]syntax.DID, error) {
	due, err := pgpool.Collect(ctx, db, pgx.RowTo[syntax.DID], `
		SELECT did FROM accounts WHERE erase_after <= $1 AND erasing_at IS NULL ORDER BY erase_after, did LIMIT $2`, now,
		limit)
	return due, errs.Wrap(err, "read which accounts are to be erased")
}
