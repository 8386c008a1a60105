// Package consent stores whom a person lets into its convos, and what it lets others see: its
// blocks, its invitation policy, and who sees its cursors. It decides about each invitation, and
// about each claim of KeyPackages.
//
// To a caller, a person who refuses the caller looks like a person without KeyPackages. The caller
// cannot tell a block from a policy, nor either of them from an account that has published nothing.
//
// The package owns the tables blocks and policies.
package consent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
)

// MaxBlocks bounds the blocks of one DID.
const MaxBlocks = 10_000

// Errors of blocks and policies.
var (
	ErrTooManyBlocks = fmt.Errorf("an account blocks at most %d others", MaxBlocks)
	ErrOwnBlock      = errors.New("did: an account cannot block itself")
	ErrUnknownPolicy = errors.New("policy must be everyone, shared or nobody")
)

// BlockedError says that the caller invites a DID that it has blocked, or claims the DID's
// KeyPackages. It is about the caller's own blocks, never about blocks by others.
type BlockedError struct{ DID syntax.DID }

func (e *BlockedError) Error() string {
	return e.DID.String() + " is blocked by the caller; unblock it first with unblockActor"
}

// Policy says who may invite a person and claim its KeyPackages.
type Policy string

// The policies.
const (
	Everyone Policy = "everyone" // the default
	Shared   Policy = "shared"   // members of a convo that the person is in and has accepted
	Nobody   Policy = "nobody"
)

// SetPolicy sets the policy of did, which applies to invitations that begin later. Error besides
// the database's: ErrUnknownPolicy.
func SetPolicy(ctx context.Context, tx pgx.Tx, did syntax.DID, p Policy) error {
	if p != Everyone && p != Shared && p != Nobody {
		return ErrUnknownPolicy
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO policies (did, invitations) VALUES ($1, $2)
		ON CONFLICT (did) DO UPDATE SET invitations = excluded.invitations`, did, p)
	return errs.Wrap(err, "set the invitation policy")
}

// PolicyOf returns the policy of did.
func PolicyOf(ctx context.Context, q pgpool.Queryer, did syntax.DID) (p Policy, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce((SELECT invitations FROM policies WHERE did = $1), 'everyone')`, did).Scan(&p)
	return p, errs.Wrap(err, "read the invitation policy")
}

// Erase deletes up to limit blocks that a person has made or that name the person, and the person's
// policies. It returns how many rows it has deleted. 0 means that none is left.
func Erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, limit int) (n int64, err error) {
	err = tx.QueryRow(ctx, `
		WITH own AS (
			DELETE FROM blocks WHERE (did, blocked_did) IN (SELECT did, blocked_did FROM blocks WHERE did = $1 LIMIT $2)
				RETURNING did
		), others AS (
			DELETE FROM blocks WHERE (did, blocked_did) IN (SELECT did, blocked_did FROM blocks WHERE blocked_did = $1 LIMIT $2)
				RETURNING did
		), policy AS (
			DELETE FROM policies WHERE did = $1 RETURNING did
		)
		SELECT (SELECT count(*) FROM own) + (SELECT count(*) FROM others) + (SELECT count(*) FROM policy)`,
		p.DID, limit).Scan(&n)
	return n, errs.Wrap(err, "erase blocks")
}

// Blocked is one of a person's blocks.
type Blocked struct {
	DID syntax.DID
	At  time.Time // in whole milliseconds
}

// Block blocks another DID for did, and returns when did first blocked it. A repeated call changes
// nothing. It takes the lock of the blocked DID's invitations. If the transaction also locks a
// convo, it must lock the convo first. convos.Block also declines open invitations. Errors besides
// the database's: ErrOwnBlock, ErrTooManyBlocks.
func Block(ctx context.Context, tx pgx.Tx, did, blocked syntax.DID) (at time.Time, err error) {
	if did == blocked {
		return at, ErrOwnBlock
	}
	var others int
	batch := &pgx.Batch{}
	pgpool.LockBlocks.Queue(batch, did.String())
	pgpool.LockInvitations.Queue(batch, blocked.String())
	// An existing block is locked, so that nobody ends it before this transaction ends.
	batch.Queue(`
		WITH block AS (
			INSERT INTO blocks (did, blocked_did, created_at) VALUES ($1, $2, date_trunc('milliseconds', clock_timestamp()))
			ON CONFLICT (did, blocked_did) DO UPDATE SET did = excluded.did RETURNING created_at
		)
		SELECT created_at, (SELECT count(*) FROM blocks WHERE did = $1 AND blocked_did <> $2) FROM block`, did, blocked).
		QueryRow(func(row pgx.Row) error { return row.Scan(&at, &others) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return at, fmt.Errorf("block: %w", err)
	}
	if others >= MaxBlocks {
		return at, ErrTooManyBlocks
	}
	return at, nil
}

// Unblock ends did's block of a DID, if there is one.
func Unblock(ctx context.Context, tx pgx.Tx, did, blocked syntax.DID) error {
	_, err := tx.Exec(ctx, `DELETE FROM blocks WHERE did = $1 AND blocked_did = $2`, did, blocked)
	return errs.Wrap(err, "unblock")
}

// Blocks returns up to limit DIDs that did blocks, in their order, beginning after the DID after.
// more says whether there are more. Only did may see the result.
func Blocks(ctx context.Context, q pgpool.Queryer, did, after syntax.DID, limit int) (blocks []Blocked, more bool,
	err error) {
	blocks, err = pgpool.Collect(ctx, q, pgx.RowToStructByPos[Blocked], `
		SELECT blocked_did, created_at FROM blocks WHERE did = $1 AND blocked_did > $2 ORDER BY blocked_did LIMIT $3`, did,
		after, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list blocks: %w", err)
	}
	if len(blocks) > limit {
		return blocks[:limit], true, nil
	}
	return blocks, false, nil
}
