package network

import (
	"context"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/keypackages"
)

// Invitation is a Welcome for people of other services.
type Invitation struct {
	ConvoID uuid.UUID
	Inviter syntax.DID
	Epoch   int64 // that the Welcome leads into
	For     []keypackages.Foreign
}

// Invite records in the Welcome's transaction that it uses KeyPackages of other services. Each is used
// once here: the primary key of sent_invitations. A Sender tells their homes. Error besides the
// database's: *keypackages.UnusableError.
func Invite(ctx context.Context, tx pgx.Tx, i Invitation) error {
	slices.SortFunc(i.For, func(a, b keypackages.Foreign) int { return slices.Compare(a.Ref, b.Ref) }) // no deadlock
	for _, f := range i.For {
		tag, err := tx.Exec(ctx, `
			INSERT INTO sent_invitations (did, ref, id, service, device_id, cipher_suite, convo_id, inviter, epoch, created_at,
				next_attempt_at)
			VALUES ($1, $2, gen_random_uuid(), $3, $4, $5, $6, $7, $8, clock_timestamp(), clock_timestamp())
			ON CONFLICT (did, ref) DO NOTHING`,
			f.DID, []byte(f.Ref), f.Service, f.DeviceID, int32(f.CipherSuite), i.ConvoID, i.Inviter, i.Epoch)
		if err != nil {
			return fmt.Errorf("record an invitation: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return &keypackages.UnusableError{Ref: f.Ref, Reason: "has been consumed by another Welcome"}
		}
	}
	return nil
}
