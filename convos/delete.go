package convos

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos/disputes"
	"mlsd/idem"
	"mlsd/internal/errs"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/messages"
	"mlsd/outbox"
	"mlsd/welcome"
)

// Close closes a convo without a commit, and returns when the convo was closed. Its members can
// read and leave the convo. Everything else is refused with ErrConvoClosed. Error: ErrNotFound.
func Close(ctx context.Context, tx pgx.Tx, convo uuid.UUID) (at time.Time, err error) {
	err = tx.QueryRow(ctx, `
		UPDATE convos SET closed_at = coalesce(closed_at, clock_timestamp()) WHERE id = $1 RETURNING closed_at`,
		convo).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return at, ErrNotFound
	}
	if err != nil {
		return at, fmt.Errorf("close the convo: %w", err)
	}
	return at, welcome.EndInvitations(ctx, tx, convo)
}

// NSIDDelete names the transactions of a deletion, for failpoints.
const NSIDDelete = "mlsd.convos.delete"

// Bounds of one transaction of a deletion. PostgreSQL deletes 64 MiB of bodies within a second.
const (
	purgeBatch    = 1000     // rows of each table
	purgeBytes    = 64 << 20 // of log entries, or a single larger entry
	purgeWelcomes = 64       // rows of welcome_bodies, of at most 3 MiB each
)

// deleteSQL deletes the rows that show that a convo exists.
//
//go:embed delete.sql
var deleteSQL string

// Remover deletes convos. Any number of nodes can run one.
//
// A deletion has two parts. Remove is one transaction: afterwards nobody can see the convo, and its
// members have an event that says that they were removed. Purge deletes the rest in batches: the
// log, the bytes of Welcomes, the tree of the log and the attachments. RunOnce, on any node,
// finishes the deletions of a killed node.
type Remover struct {
	db     *pgxpool.Pool
	faults *failpoint.Set
	others []Purge
}

// Purge deletes up to limit rows of a deleted convo from tables of another package, and returns how
// many rows it deleted.
type Purge func(ctx context.Context, tx pgx.Tx, convo uuid.UUID, limit int) (int64, error)

// NewRemover returns a remover. db is the pool for maintenance. others delete what packages that
// import this one keep about a convo.
func NewRemover(db *pgxpool.Pool, faults *failpoint.Set, others ...Purge) *Remover {
	return &Remover{db: db, faults: faults, others: others}
}

// Remove deletes a convo with its roster, its Welcomes and the records of its writes. It leaves a
// tombstone, so that the group_id cannot be used again. The transaction must be one of maintenance.
// removed is how many members the convo had, 0 if the convo was deleted before. Error: ErrNotFound.
func (r *Remover) Remove(ctx context.Context, tx pgx.Tx, convo uuid.UUID) (removed int64, err error) {
	var creator syntax.DID
	var groupID []byte
	var key *string
	err = tx.QueryRow(ctx, `SELECT creator_did, group_id, idempotency_key FROM convos WHERE id = $1`, convo).Scan(&creator,
		&groupID, &key)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, r.removed(ctx, tx, convo)
	}
	if err != nil {
		return 0, fmt.Errorf("read the convo: %w", err)
	}
	// Lock the record before the convo, as every write does.
	if err := forgetRecords(ctx, tx, convo, creator, key); err != nil {
		return 0, err
	}
	var epoch int64
	err = tx.QueryRow(ctx, `SELECT epoch FROM convos WHERE id = $1 FOR UPDATE`, convo).Scan(&epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, r.removed(ctx, tx, convo) // another request has deleted it meanwhile
	}
	if err != nil {
		return 0, fmt.Errorf("lock the convo: %w", err)
	}
	if err := welcome.Forget(ctx, tx, convo); err != nil {
		return 0, err
	}
	if err := disputes.Forget(ctx, tx, convo); err != nil {
		return 0, err
	}
	if err := welcome.EndInvitations(ctx, tx, convo); err != nil {
		return 0, err
	}
	members, err := pgpool.Collect(ctx, tx, pgx.RowTo[syntax.DID], `
		SELECT did FROM members WHERE convo_id = $1 AND left_at IS NULL ORDER BY did`, convo)
	if err != nil {
		return 0, fmt.Errorf("read the roster: %w", err)
	}
	events := make([]outbox.Event, len(members))
	for i, did := range members {
		events[i] = outbox.Event{Kind: outbox.Membership, DID: did,
			Detail: outbox.Detail{Change: outbox.Removed, Epoch: epoch}}
	}
	group := sha256.Sum256(groupID)
	batch := &pgx.Batch{}
	outbox.Queue(batch, convo, events...) // while the convo's row has the log's last seq
	batch.Queue(deleteSQL, convo, group[:])
	return int64(len(members)), errs.Wrap(tx.SendBatch(ctx, batch).Close(), "delete the convo")
}

// removed returns nil if the convo was deleted before, and ErrNotFound if it never existed.
func (r *Remover) removed(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
	var before bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM deleted_convos WHERE id = $1)`,
		convo).Scan(&before); err != nil {
		return fmt.Errorf("look for the tombstone: %w", err)
	}
	if !before {
		return ErrNotFound
	}
	return nil
}

// forgetRecords deletes the records of the convo's creation and of all writes on it.
func forgetRecords(ctx context.Context, tx pgx.Tx, convo uuid.UUID, creator syntax.DID, key *string) error {
	people, err := pgpool.Collect(ctx, tx, pgx.RowTo[syntax.DID], `SELECT did FROM members WHERE convo_id = $1`, convo)
	if err != nil {
		return fmt.Errorf("read the roster: %w", err)
	}
	if _, err := idem.Forget(ctx, tx, people, convo.String()); err != nil || key == nil {
		return err
	}
	return idem.ForgetKey(ctx, tx, creator, nsid.CreateConvo, *key)
}

// Purge deletes what is left of a convo after Remove, and returns how many log entries it has
// deleted. Two calls at the same time wait for each other. If ctx ends first, the next call
// continues.
func (r *Remover) Purge(ctx context.Context, convo uuid.UUID) (entries int64, err error) {
	for done := false; !done; {
		if err := r.faults.Hit(ctx, failpoint.AfterCommit, NSIDDelete); err != nil {
			return entries, err
		}
		var n int64
		err := pgx.BeginFunc(ctx, r.db, func(tx pgx.Tx) (err error) {
			n, done, err = r.purge(ctx, tx, convo)
			return err
		})
		if err != nil {
			return entries, fmt.Errorf("purge convo %s: %w", convo, err)
		}
		entries += n
	}
	return entries, nil
}

// purge deletes one batch. Each batch locks the tombstone, so that batches of one convo run one
// after the other. The batch that finds nothing more records in the tombstone that nothing is left.
func (r *Remover) purge(ctx context.Context, tx pgx.Tx, convo uuid.UUID) (entries int64, done bool, err error) {
	var pending bool
	err = tx.QueryRow(ctx, `SELECT purged_at IS NULL FROM deleted_convos WHERE id = $1 FOR UPDATE`, convo).Scan(&pending)
	if err != nil || !pending {
		return 0, true, err
	}
	entries, err = messages.Purge(ctx, tx, convo, purgeBatch, purgeBytes)
	if err != nil || entries > 0 {
		return entries, false, err
	}
	bodies, err := welcome.Purge(ctx, tx, convo, purgeWelcomes)
	if err != nil || bodies == purgeWelcomes {
		return entries, false, err
	}
	for _, other := range r.others {
		n, err := other(ctx, tx, convo, purgeBatch)
		if err != nil || n >= purgeBatch {
			return entries, false, err
		}
	}
	_, err = tx.Exec(ctx, `UPDATE deleted_convos SET purged_at = clock_timestamp() WHERE id = $1`, convo)
	return entries, true, err
}

// RunOnce purges up to 100 convos whose deletion is not finished. If one purge fails, RunOnce goes
// on with the next convo.
func (r *Remover) RunOnce(ctx context.Context) error {
	unfinished, err := pgpool.Collect(ctx, r.db, pgx.RowTo[uuid.UUID],
		`SELECT id FROM deleted_convos WHERE purged_at IS NULL ORDER BY deleted_at LIMIT 100`)
	if err != nil {
		return fmt.Errorf("look for deleted convos: %w", err)
	}
	var failed error
	for _, convo := range unfinished {
		_, err := r.Purge(ctx, convo)
		failed = errors.Join(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return failed
}
