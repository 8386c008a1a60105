package api

import (
	"mlsd/api/mlsapi"
	"mlsd/features/network"
)

// DeclineInvitation: blue.catbird.mls.declineInvitation. A request without a key is safe to repeat,
// because the invitation's state changes only once.
func (h *handlers) DeclineInvitation(c *call, in *mlsapi.DeclineInvitationInput) error {
	return h.answerInvitation(c, in.Service, in.ConvoID, in.IdempotencyKey, in.Fields(), network.Declined,
		&mlsapi.DeclineInvitationOutput{State: string(network.Declined)})
}
