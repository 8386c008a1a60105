package api

import (
	"mlsd/api/mlsapi"
	"mlsd/internal/network"
)

// DeclineInvitation: blue.catbird.mls.declineInvitation. Without a key the row's state prevents a double
// effect.
func (h *handlers) DeclineInvitation(c *call, in *mlsapi.DeclineInvitationInput) error {
	return h.answerInvitation(c, in.Service, in.ConvoID, in.IdempotencyKey, in.Fields(), network.Declined,
		&mlsapi.DeclineInvitationOutput{State: string(network.Declined)})
}
