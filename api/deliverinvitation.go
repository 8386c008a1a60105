package api

import (
	"context"
	"encoding/hex"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/network"
	"mlsd/keypackages"
)

// DeliverInvitation: blue.catbird.mls.deliverInvitation. Another service calls it. A repeated call
// has no second effect, because the invitation's row exists already.
func (h *handlers) DeliverInvitation(c *call, in *mlsapi.DeliverInvitationInput) error {
	r, err := received(in)
	if err != nil {
		return err
	}
	err = c.outside(func() error {
		return h.find(c, 1, func() (err error) {
			r.From, err = h.Network.Peer(c.ctx, c.caller)
			return err
		})
	})
	if err != nil {
		return err
	}
	withheld, err := h.Gate.Withheld(c.ctx, []syntax.DID{r.Inviter})
	if err != nil {
		return err
	}
	r.Withheld = len(withheld) > 0
	return h.write(c, "", "", content(in.Fields()), func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
		return &mlsapi.DeliverInvitationOutput{Success: true}, network.Receive(ctx, tx, r, c.quota.Invitations())
	})
}

// received parses an invitation.
func received(in *mlsapi.DeliverInvitationInput) (r network.Received, err error) {
	r.Kind = network.Kind(in.Kind)
	if r.Kind != network.Invited && r.Kind != network.Withdrawn && r.Kind != network.Ended {
		return r, &network.InvitationError{Reason: "kind: this service knows invited, withdrawn and ended"}
	}
	if r.ConvoID, err = convoID(in.ConvoID); err != nil {
		return r, err
	}
	if r.CipherSuite, err = cipherSuite(in.CipherSuite); err != nil {
		return r, err
	}
	ref, err := hex.DecodeString(in.KeyPackageRef)
	if err != nil || len(ref) == 0 {
		return r, lexcodec.Malformed("keyPackageRef", "must be hexadecimal", in.KeyPackageRef)
	}
	r.To = keypackages.Recipient{DID: in.Recipient, DeviceID: in.DeviceID, Ref: ref}
	r.Inviter, r.Epoch = in.Inviter, in.Epoch
	if in.ExpiresAt != nil {
		r.ExpiresAt = &in.ExpiresAt.Time
	}
	return r, nil
}
