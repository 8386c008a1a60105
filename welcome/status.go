package welcome

import (
	"context"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/mls"
	"mlsd/outbox"
)

// Failed is a State that only a Status can have: the device has reported that it could not join, or
// the home of the device's owner has not accepted the invitation.
const Failed State = "failed"

// Status is what an inviter may know of a Welcome for one device.
type Status struct {
	DID      syntax.DID
	DeviceID string
	Ref      mls.KeyPackageRef
	Epoch    int64
	State    State     // by the clock, even if the sweeper has not stored the change yet
	Since    time.Time // when State began; for Superseded and Expired, when the Welcome was made
}

// statusRow is a row of welcomes, with the facts that decide what the inviter may see of it.
type statusRow struct {
	ID             uuid.UUID
	DID            syntax.DID
	DeviceID       string
	Ref            mls.KeyPackageRef
	Epoch          int64
	State          State
	CreatedAt      time.Time
	FetchedAt      *time.Time
	GraceExpiresAt *time.Time
	ConfirmedAt    *time.Time
	Failed         bool // during the present lease
	LastFailedAt   *time.Time
	Sent           bool       // by the inviter
	HiddenSince    *time.Time // since then the convo is a request, or the person blocks the inviter
	Replaced       bool       // the device has a Welcome of a later epoch
	RefusedAt      *time.Time // the person's home has refused the invitation, or was unreachable for too long
	Now            time.Time
}

// QueueRefusal tells the inviter, if the inviter is still a member, that the home of a person has
// refused the invitation for good. It inserts an event.
func QueueRefusal(ctx context.Context, tx pgx.Tx, convo uuid.UUID, inviter, did syntax.DID, epoch int64) error {
	var present bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM members WHERE convo_id = $1 AND did = $2 AND left_at IS NULL)`, convo,
		inviter).Scan(&present)
	if err == nil && present {
		err = outbox.Insert(ctx, tx, convo, outbox.Event{Kind: outbox.Arrival, DID: inviter,
			Detail: outbox.Detail{Change: "failed", By: did, Epoch: epoch}})
	}
	return errs.Wrap(err, "tell the inviter of a refused invitation")
}

// Statuses reads the convo's Welcomes whose ids are above after, at most limit of them, in the
// order in which they were made. It returns the Welcomes that the inviter has sent: with a commit,
// by creating the convo, or by resetting the convo before it. next is the id of the last Welcome
// that was read, or nil if there are no more. The caller has checked that the inviter is a member.
//
// The inviter does not see what a person does while the convo is a request, or after the person has
// blocked the inviter.
func (s *Service) Statuses(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, inviter syntax.DID, after uuid.UUID,
	limit int) (all []Status, next *uuid.UUID, err error) {
	found, err := pgpool.Collect(ctx, q, pgx.RowToStructByPos[statusRow], `
		SELECT w.id, w.recipient_did, w.device_id, w.key_package_ref, w.epoch, w.state, w.created_at, w.fetched_at,
			w.grace_expires_at, w.confirmed_at, w.last_error IS NOT NULL, w.last_failed_at,
			coalesce(commit.sender_did, CASE WHEN c.predecessor_id IS NULL THEN c.creator_did ELSE opening.sender_did END) = $2,
			least(m.requested_at, (SELECT created_at FROM blocks WHERE did = m.did AND blocked_did = $2)),
			EXISTS (SELECT FROM welcomes later WHERE later.convo_id = w.convo_id AND later.recipient_did = w.recipient_did
				AND later.device_id = w.device_id AND later.epoch > w.epoch),
			s.ended_at, clock_timestamp()
		FROM convos c
		JOIN welcomes w ON w.convo_id = c.id
		JOIN members m ON m.convo_id = c.id AND m.did = w.recipient_did
		LEFT JOIN messages commit ON commit.convo_id = c.id AND commit.kind = 3 AND commit.epoch = w.epoch
		LEFT JOIN sent_invitations s ON s.convo_id = c.id AND s.did = w.recipient_did AND s.ref = w.key_package_ref
			AND s.epoch = w.epoch AND s.kind = 'invited' AND s.state = 'dead'
		LEFT JOIN messages opening ON opening.convo_id = c.id AND opening.seq = 1 AND c.predecessor_id IS NOT NULL
		WHERE c.id = $1 AND w.id > $3
		ORDER BY w.id LIMIT $4`, convo, inviter, after, limit+1)
	if err != nil {
		return nil, nil, fmt.Errorf("read the states of Welcomes: %w", err)
	}
	if len(found) > limit {
		found = found[:limit]
		next = &found[limit-1].ID
	}
	for _, r := range found {
		if r.Sent {
			status := Status{DID: r.DID, DeviceID: r.DeviceID, Ref: r.Ref, Epoch: r.Epoch}
			status.State, status.Since = r.shown(s.policy.OnExpiry)
			all = append(all, status)
		}
	}
	return all, next, nil
}

// shown returns the state that the inviter sees, and when that state began. It is the state that
// the Welcome would have if the person had done nothing since HiddenSince.
func (r *statusRow) shown(onExpiry ExpiryPolicy) (State, time.Time) {
	seen := func(at *time.Time) bool { return at != nil && (r.HiddenSince == nil || at.Before(*r.HiddenSince)) }
	joined, fetched, failed := seen(r.ConfirmedAt), seen(r.FetchedAt), seen(r.LastFailedAt)
	leased := r.State == InFlight || r.State == Consumed
	switch {
	case joined:
		return Consumed, *r.ConfirmedAt
	case r.Replaced || r.State == Superseded:
		return Superseded, r.CreatedAt
	case r.State == Expired || r.Now.Sub(r.CreatedAt) >= KeepUnfetched:
		return Expired, r.CreatedAt
	case failed && (r.Failed || !fetched):
		return Failed, *r.LastFailedAt
	case leased && fetched && r.Now.Before(*r.GraceExpiresAt):
		return InFlight, *r.FetchedAt
	case leased && fetched && onExpiry == Consume:
		return Consumed, *r.GraceExpiresAt
	case r.RefusedAt != nil:
		return Failed, *r.RefusedAt
	}
	return Available, r.CreatedAt
}
