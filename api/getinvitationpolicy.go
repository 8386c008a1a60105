package api

import (
	"mlsd/api/mlsapi"
	"mlsd/people/consent"
)

// GetInvitationPolicy: blue.catbird.mls.getInvitationPolicy.
func (h *handlers) GetInvitationPolicy(c *call) error {
	policy, err := consent.PolicyOf(c.ctx, h.DB, c.caller)
	if err != nil {
		return err
	}
	return c.reply(&mlsapi.GetInvitationPolicyOutput{Policy: string(policy)})
}
