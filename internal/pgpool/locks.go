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

// TxLock is an advisory lock that a transaction holds until its end. There is one lock for each
// subject, such as an account. docs/ARCHITECTURE.md says in which order locks are taken. The
// statement that waits for the lock does not see what the other transaction has committed
// meanwhile; the next statement does.
type TxLock string

// The locks of transactions. All are here, so that no two have the same key.
const (
	// LockBlocks is for each person who blocks others: the person's blocks are counted one after
	// the other.
	LockBlocks TxLock = "blocks"
	// LockInvitations is for each inviter. Invitations that are counted run one after the other;
	// all others share the lock. A block of the inviter waits for the invitations that have not
	// seen it. So once the block is answered, none of these invitations can commit.
	LockInvitations TxLock = "invitations"
	// LockInvited is for each person whom other services invite: such invitations are counted one
	// after the other.
	LockInvited TxLock = "invited"
	// LockClaims is for each caller. A claim must see what the previous claim took from the budget.
	// There is no lock for each requested DID, because a few large claims at once would fill the
	// lock table.
	LockClaims TxLock = "claims"
	// LockStocks is for each owner of KeyPackages. It orders publications and changes of signals.
	LockStocks TxLock = "stocks"
	// LockEpochs is for each convo. It orders the first reports of an epoch.
	LockEpochs TxLock = "epochs"
	// LockPushTargets is for each person: the person's push targets are counted one after the
	// other.
	LockPushTargets TxLock = "push"
	// LockReports orders new reports of abuse, because their open bytes are bounded together.
	LockReports TxLock = "reports"
	// LockLogKeys orders changes of the keys that sign log heads.
	LockLogKeys TxLock = "log keys"
	// LockRecords is held by the node that deletes idempotency records.
	LockRecords TxLock = "records"
	// LockUsage orders writes of the usage of callers.
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

// Wait waits for the lock of a subject. The subject "" is for locks that exist once.
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

// NodeLock is an advisory lock that one node of a database holds. A session holds the lock until
// the session ends, so a node that has lost its session has lost the lock.
type NodeLock int32

// The locks of nodes.
const (
	LockSequencer   NodeLock = 1 // moves events into the stream
	LockExpiry      NodeLock = 2 // deletes old messages
	LockRelay       NodeLock = 3 // follows the relay
	LockAttachments NodeLock = 4 // deletes from the store of attachments
)

// NodeLockSpace is the first key of these locks: "mlsd". The second key is the NodeLock itself.
const NodeLockSpace = 0x6d6c7364

// unlockTimeout bounds the end of a session, or of its lock.
const unlockTimeout = time.Second

// Hold returns a session that holds the lock, if the lock is free. The caller closes the session.
// Hold returns nil if another session has the lock.
func (l NodeLock) Hold(ctx context.Context, db *pgxpool.Pool) (*pgx.Conn, error) {
	conn, err := l.try(ctx, db)
	if conn == nil || err != nil {
		return nil, err
	}
	return conn.Hijack(), nil // the connection must not return to the pool
}

// Do calls do with a session that holds the lock. If another session has the lock, Do does nothing.
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
			err = errors.Join(err, unlockErr, conn.Conn().Close(ctx)) // closing the session releases the lock
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
