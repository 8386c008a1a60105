package welcome

import (
	"context"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/keypackages"
)

// Invitation is a Welcome for people of other services.
type Invitation struct {
	ConvoID uuid.UUID
	Inviter syntax.DID
	Epoch   int64 // the epoch that the Welcome leads into
	For     []keypackages.Foreign
}

// Invite records, in the Welcome's transaction, that the Welcome uses KeyPackages of other
// services. Each KeyPackage can be used once here, unless it is a last resort. A sender of package
// network tells their homes. Errors: *keypackages.UnusableError, errors of the database.
func Invite(ctx context.Context, tx pgx.Tx, i Invitation) error {
	// The order prevents deadlocks.
	slices.SortFunc(i.For, func(a, b keypackages.Foreign) int { return slices.Compare(a.Ref, b.Ref) })
	for _, f := range i.For {
		tag, err := tx.Exec(ctx, `
			INSERT INTO sent_invitations (id, did, ref, last_resort, service, device_id, cipher_suite, convo_id, inviter, epoch,
				domain, lot, created_at, queued_at, next_attempt_at)
			VALUES (gen_random_uuid(), $1, $2, $9, $3, $4, $5, $6, $7, $8, $10, coalesce((
				SELECT lot FROM sent_invitations -- of the same home
				WHERE state IN ('pending', 'sending') AND coalesce(domain, service) = $10 LIMIT 1), random()),
				clock_timestamp(), clock_timestamp(), clock_timestamp())
			ON CONFLICT (did, ref) WHERE NOT last_resort DO NOTHING`,
			f.DID, []byte(f.Ref), f.Service, f.DeviceID, int32(f.CipherSuite), i.ConvoID, i.Inviter, i.Epoch, f.LastResort,
			f.Domain)
		if err != nil {
			return fmt.Errorf("record an invitation: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return &keypackages.UnusableError{Ref: f.Ref, Reason: "has been consumed by another Welcome"}
		}
	}
	return nil
}

// WithdrawInvitations makes the homes of people learn that Welcomes for their devices are void. The device id
// "" means any device, and uuid.Nil any convo. A home that refused an invitation does not learn of
// its end.
func WithdrawInvitations(ctx context.Context, tx pgx.Tx, convo uuid.UUID, devices ...Device) error {
	if len(devices) == 0 {
		return nil
	}
	dids, ids := make([]syntax.DID, len(devices)), make([]string, len(devices))
	for i, d := range devices {
		dids[i], ids[i] = d.DID, d.DeviceID
	}
	_, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT s.id
			FROM unnest($2::text[], $3::text[]) AS d (did, device_id) JOIN sent_invitations s ON s.did = d.did
			WHERE s.kind = 'invited' AND s.state <> 'dead' AND (d.device_id = '' OR s.device_id = d.device_id)
				AND ($1 = '00000000-0000-0000-0000-000000000000'::uuid OR s.convo_id = $1)
			ORDER BY s.id FOR UPDATE OF s
		)
		UPDATE sent_invitations s SET kind = 'withdrawn', queued_at = clock_timestamp(), state = 'pending', attempts = 0,
			next_attempt_at = clock_timestamp(), ended_at = NULL, version = version + 1
		FROM locked WHERE s.id = locked.id`, convo, dids, ids)
	return errs.Wrap(err, "withdraw invitations")
}

// EndInvitations makes the homes of the people who were invited into a convo learn that it is closed.
func EndInvitations(ctx context.Context, tx pgx.Tx, convo uuid.UUID) error {
	_, err := tx.Exec(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT id FROM sent_invitations WHERE convo_id = $1 AND kind = 'invited' AND state <> 'dead' ORDER BY id FOR UPDATE
		)
		UPDATE sent_invitations s SET kind = 'ended', queued_at = clock_timestamp(), state = 'pending', attempts = 0,
			next_attempt_at = clock_timestamp(), ended_at = NULL, version = version + 1
		FROM locked WHERE s.id = locked.id`, convo)
	return errs.Wrap(err, "end the invitations to a convo")
}
