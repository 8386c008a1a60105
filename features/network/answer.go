package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// ErrNoInvitation says that a person has no invitation to a convo.
var ErrNoInvitation = errors.New("there is no invitation to this convo")

// State is the state of an invitation: what its person has answered, or the Kind of its end.
type State string

// The states that a person's answer can set.
const (
	Open     State = "open"
	Accepted State = "accepted"
	Declined State = "declined"
)

// Listed is an invitation as its person sees it.
type Listed struct {
	ID        uuid.UUID // id of the row
	Service   syntax.DID
	ConvoID   uuid.UUID
	Inviter   syntax.DID
	DeviceID  string
	Ref       mls.KeyPackageRef
	Epoch     int64
	Request   bool
	State     State
	CreatedAt time.Time
	ExpiresAt *time.Time
}

// List returns at most limit invitations of a person, the newest first, and whether there are more.
// It returns invitations that are older than the invitation with the id before. before is uuid.Max
// for the first page.
func List(ctx context.Context, q pgpool.Queryer, did syntax.DID, before uuid.UUID, limit int) (all []Listed, more bool,
	err error) {
	all, err = pgpool.Collect(ctx, q, pgx.RowToStructByPos[Listed], `
		SELECT id, service, convo_id, inviter, device_id, ref, epoch, request,
			coalesce(ended, CASE WHEN state = 'open' AND expires_at <= now() THEN 'withdrawn' END, state), created_at, expires_at
		FROM received_invitations WHERE did = $1 AND id < $2 AND NOT hidden ORDER BY id DESC LIMIT $3`, did, before, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list invitations: %w", err)
	}
	return all[:min(len(all), limit)], len(all) > limit, nil
}

// Answer records a person's answer to the invitations to a convo of another service. The first
// answer to a request of the last day changes the budgets that have counted it. Errors:
// ErrNoInvitation, errors of the database.
func Answer(ctx context.Context, tx pgx.Tx, did, service syntax.DID, convo uuid.UUID, answer State) error {
	var rows int64
	var first bool
	var by cause
	err := tx.QueryRow(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT did, id, ref, domain, inviter, state, request, created_at FROM received_invitations
			WHERE did = $1 AND service = $2 AND convo_id = $3 AND NOT hidden ORDER BY id FOR UPDATE
		), changed AS (
			UPDATE received_invitations r SET state = $4, answered_at = clock_timestamp()
			FROM locked WHERE (r.did, r.id) = (locked.did, locked.id) AND r.state <> $4
		)
		SELECT count(*), coalesce(bool_and(state = 'open')
				AND bool_or(request AND created_at > now() - interval '1 day'), false),
			coalesce(max(domain), ''), coalesce(max(inviter), ''),
			EXISTS (SELECT FROM key_packages k JOIN locked USING (did, ref) WHERE k.claimed_by = locked.inviter)
		FROM locked`, did, service, convo, string(answer)).
		Scan(&rows, &first, &by.domain, &by.inviter, &by.proven)
	if err != nil {
		return fmt.Errorf("answer an invitation: %w", err)
	}
	if rows == 0 {
		return ErrNoInvitation
	}
	if !first {
		return nil
	}
	return by.answered(ctx, tx, answer == Accepted)
}

// Refuse hides the invitations by inviter that did has not accepted, because did blocks inviter.
func Refuse(ctx context.Context, tx pgx.Tx, did, inviter syntax.DID) error {
	_, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT did, id FROM received_invitations
			WHERE inviter = $2 AND did = $1 AND state <> 'accepted' AND NOT hidden ORDER BY id FOR UPDATE
		)
		UPDATE received_invitations r SET hidden = true FROM locked WHERE (r.did, r.id) = (locked.did, locked.id)`,
		did, inviter)
	return errs.Wrap(err, "hide the invitations of the blocked")
}
