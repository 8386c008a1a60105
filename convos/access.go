package convos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos/disputes"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/messages"
)

// Membership is a current member's view of the convo at one moment. A read that it authorises stays
// inside its window, so that the read returns nothing that was committed after the check.
type Membership struct {
	Epoch  int64
	Window messages.Window
}

// Authorise returns the membership of did. Errors: ErrNotFound, for a non-member and for a convo
// that does not exist; ErrNotMember, for a former member.
func Authorise(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, did syntax.DID) (Membership, error) {
	m := Membership{Window: messages.Window{ConvoID: convo}}
	var left bool
	err := q.QueryRow(ctx, `
		SELECT c.epoch, m.joined_seq, c.last_seq, m.left_at IS NOT NULL
		FROM convos c JOIN members m ON m.convo_id = c.id AND m.did = $2
		WHERE c.id = $1`, convo, did).Scan(&m.Epoch, &m.Window.First, &m.Window.Last, &left)
	if errors.Is(err, pgx.ErrNoRows) {
		return Membership{}, ErrNotFound
	}
	if err != nil {
		return Membership{}, fmt.Errorf("authorise: %w", err)
	}
	if left {
		return Membership{}, ErrNotMember
	}
	return m, nil
}

// Predecessor returns did's window of the convo whose reset opened this one, if did is still a
// member of the old convo.
func Predecessor(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, did syntax.DID) (w messages.Window, ok bool,
	err error) {
	err = q.QueryRow(ctx, `
		SELECT p.id, m.joined_seq, p.last_seq
		FROM convos c JOIN convos p ON p.id = c.predecessor_id
		JOIN members m ON m.convo_id = p.id AND m.did = $2 AND m.left_at IS NULL
		WHERE c.id = $1`, convo, did).Scan(&w.ConvoID, &w.First, &w.Last)
	if errors.Is(err, pgx.ErrNoRows) {
		return w, false, nil
	}
	if err != nil {
		return w, false, fmt.Errorf("look for the predecessor: %w", err)
	}
	return w, true, nil
}

// locked is a convo whose row lock the transaction holds, as the caller sees the convo.
type locked struct {
	id      uuid.UUID
	groupID []byte
	creator syntax.DID
	// admins are on the roster. formerAdmins stopped being admins in this epoch.
	admins, formerAdmins []syntax.DID
	cipherSuite          int32
	epoch                int64
	lastSeq              int64
	leftEpoch            *int64 // the epoch in which the caller left; nil for a current member
	closed               bool
	successor            uuid.NullUUID  // set if the convo was closed by a reset
	reserved             *time.Duration // how much longer the next commit is reserved for another member; nil if it is not
	dispute              *disputes.Dispute
	now                  time.Time // the database's time, after the lock was taken
}

// refuseClosed returns the refusal of a write to a closed convo, or nil if the convo is open.
func (c *locked) refuseClosed() error {
	if !c.closed {
		return nil
	}
	return messages.Closed(c.successor.UUID)
}

// lockConvo takes the row lock that orders all writers of the convo. Then a second statement reads
// the caller's membership: a single statement would read it as it was before the lock. leftEpoch is
// set for a former member. A non-member is refused before the lock, so that a non-member cannot
// delay the convo's writers, and cannot learn from a wait that the convo exists. Error:
// ErrNotFound.
func lockConvo(ctx context.Context, tx pgx.Tx, convo uuid.UUID, caller syntax.DID) (c locked, err error) {
	c.id = convo
	var known bool
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM members WHERE convo_id = $1 AND did = $2)`, convo,
		caller).Scan(&known)
	if err != nil {
		return c, fmt.Errorf("look for the caller: %w", err)
	}
	if !known {
		return c, ErrNotFound
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		SELECT group_id, creator_did, cipher_suite, epoch, last_seq, closed_at IS NOT NULL, successor_id,
			CASE WHEN reserved_for <> $2 AND reserved_until > clock_timestamp() THEN reserved_until - clock_timestamp() END,
			clock_timestamp()
		FROM convos WHERE id = $1 FOR NO KEY UPDATE`, convo, caller).
		QueryRow(func(row pgx.Row) error {
			return row.Scan(&c.groupID, &c.creator, &c.cipherSuite, &c.epoch, &c.lastSeq, &c.closed, &c.successor, &c.reserved,
				&c.now)
		})
	batch.Queue(`SELECT left_epoch FROM members WHERE convo_id = $1 AND did = $2`, convo, caller).
		QueryRow(func(row pgx.Row) error { return row.Scan(&c.leftEpoch) })
	queueRoles(batch, &c)
	disputes.QueueOpen(batch, convo, caller, &c.dispute)
	err = tx.SendBatch(ctx, batch).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		return c, ErrNotFound
	}
	return c, errs.Wrap(err, "lock the convo")
}

// lockOpen is lockConvo for a change that only members may make, and only in an open convo. Errors:
// those of lockConvo and of refuseClosed, and ErrNotMember.
func lockOpen(ctx context.Context, tx pgx.Tx, convo uuid.UUID, caller syntax.DID) (locked, error) {
	c, err := lockConvo(ctx, tx, convo, caller)
	switch {
	case err != nil:
		return c, err
	case c.leftEpoch != nil:
		return c, ErrNotMember
	}
	return c, c.refuseClosed()
}
