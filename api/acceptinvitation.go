package api

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/network"
)

// AcceptInvitation: blue.catbird.mls.acceptInvitation. A request without a key is safe to repeat,
// because the invitation's state changes only once.
func (h *handlers) AcceptInvitation(c *call, in *mlsapi.AcceptInvitationInput) error {
	return h.answerInvitation(c, in.Service, in.ConvoID, in.IdempotencyKey, in.Fields(), network.Accepted,
		&mlsapi.AcceptInvitationOutput{State: string(network.Accepted)})
}

// answerInvitation records an answer to the invitations to a convo of another service.
func (h *handlers) answerInvitation(c *call, service syntax.DID, id string, keyField *string, input []lexcodec.Field,
	answer network.State, out lexcodec.Appender) error {
	key, err := c.key(keyField)
	if err != nil {
		return err
	}
	convo, err := convoID(id)
	if err != nil {
		return err
	}
	return h.write(c, convo.String(), key, content(input),
		func(ctx context.Context, tx pgx.Tx) (lexcodec.Appender, error) {
			return out, network.Answer(ctx, tx, c.caller, service, convo, answer)
		})
}
