package pgpool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
)

// TxLock is an advisory lock that a transaction holds until its end: one lock for each subject, such
// as an account. docs/ARCHITECTURE.md says in which order locks are taken. A statement behind the
// lock sees what it has waited for, the statement that waits does not.
type TxLock string

// The locks of transactions. All are here, so that no two have one key.
const (
	// LockBlocks is for each person that blocks others: its blocks are counted one after the other.
	LockBlocks TxLock = "blocks"
	// LockInvitations is for each inviter. Its invitations count each other, one after the other; those
	// that are not counted share the lock. A block of the inviter waits for the invitations that have
	// not seen it: once it is answered, none of them commits.
	LockInvitations TxLock = "invitations"
	// LockInvited is for each person that other services invite: those invitations count each other.
	LockInvited TxLock = "invited"
	// LockClaims is for each caller. A claim must see what the one before it took from the budget. It is
	// not a lock for each DID asked for: a few large claims at once would fill the lock table.
	LockClaims TxLock = "claims"
	// LockStocks is for each owner of KeyPackages: publications and changes of signals.
	LockStocks TxLock = "stocks"
	// LockEpochs is for each convo: the first reports of an epoch.
	LockEpochs TxLock = "epochs"
	// LockPushTargets is for each person: its targets are counted one after the other.
	LockPushTargets TxLock = "push"
	// LockReports orders new reports of abuse: the sum of the open ones is bounded.
	LockReports TxLock = "reports"
	// LockLogKeys orders changes of the keys that sign heads of logs.
	LockLogKeys TxLock = "log keys"
	// LockRecords is of the node that deletes idempotency records.
	LockRecords TxLock = "records"
	// LockUsage orders writes of what callers have used.
	LockUsage TxLock = "usage"
)

// lockSubjects takes the locks in one order, so that two transactions cannot deadlock.
const lockSubjects = `
	SELECT pg_advisory_xact_lock(key) FROM (
		SELECT DISTINCT hashtextextended('mlsd.' || $1::text || ' ' || subject, 0) AS key FROM unnest($2::text[]) AS subject
			ORDER BY key
	) locks`

// Queue adds to a batch the statement that waits for the locks of subjects.
func (l TxLock) Queue(b *pgx.Batch, subjects ...string) { b.Queue(lockSubjects, string(l), subjects) }

// QueueShared is Queue for one subject, whose lock several transactions can share.
func (l TxLock) QueueShared(b *pgx.Batch, subject string) {
	b.Queue(`SELECT pg_advisory_xact_lock_shared(hashtextextended('mlsd.' || $1::text || ' ' || $2::text, 0))`, string(l),
		subject)
}

// Wait waits for the lock of a subject; "": there is only one.
func (l TxLock) Wait(ctx context.Context, tx pgx.Tx, subject string) error {
	_, err := tx.Exec(ctx, lockSubjects, string(l), []string{subject})
	return errs.Wrap(err, "wait for the lock %s", l)
}

// Try takes the lock if it is free.
func (l TxLock) Try(ctx context.Context, tx pgx.Tx) (free bool, err error) {
	err = tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended('mlsd.' || $1::text || ' ', 0))`,
		string(l)).Scan(&free)
	return free, err
}

// NodeLock is an advisory lock of one node of a database. A session holds it until it ends, so a node
// that has lost the session has lost the lock.
type NodeLock int32

// The locks of nodes.
const (
	LockSequencer   NodeLock = 1 // moves events into the stream
	LockExpiry      NodeLock = 2 // deletes old messages
	LockRelay       NodeLock = 3 // follows the relay
	LockAttachments NodeLock = 4 // deletes from the store of attachments
)

// NodeLockSpace is the first key of these locks: "mlsd". The second one is the NodeLock itself.
const NodeLockSpace = 0x6d6c7364

// unlockTimeout bounds the end of a session, or of its lock.
const unlockTimeout = time.Second

// Hold returns a session that holds the lock, if that is free. The caller closes it. nil: another
// session has the lock.
func (l NodeLock) Hold(ctx context.Context, db *pgxpool.Pool) (*pgx.Conn, error) {
	conn, err := l.try(ctx, db)
	if conn == nil || err != nil {
		return nil, err
	}
	return conn.Hijack(), nil // it must not return to the pool
}

// Do calls do with a session that holds the lock. It does nothing if another one has it.
func (l NodeLock) Do(ctx context.Context, db *pgxpool.Pool, do func(*pgx.Conn) error) (err error) {
	conn, err := l.try(ctx, db)
	if conn == nil || err != nil {
		return err
	}
	defer conn.Release()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
		defer cancel()
		if _, unlockErr := conn.Exec(ctx, `SELECT pg_advisory_unlock($1, $2)`, NodeLockSpace, l); unlockErr != nil {
			err = errors.Join(err, unlockErr, conn.Conn().Close(ctx)) // the lock goes with the session
		}
	}()
	return do(conn.Conn())
}

// try returns a connection whose session holds the lock, or nil.
func (l NodeLock) try(ctx context.Context, db *pgxpool.Pool) (*pgxpool.Conn, error) {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	var free bool
	err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1, $2)`, NodeLockSpace, l).Scan(&free)
	if err != nil || !free {
		conn.Release()
		return nil, err
	}
	return conn, nil
}
