package api

import (
	"github.com/google/uuid"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/features/network"
)

// GetInvitations: blue.catbird.mls.getInvitations. A page's cursor is the id of the page's last
// row.
func (h *handlers) GetInvitations(c *call, p *mlsapi.GetInvitationsParams) error {
	before, err := placeOf(p.Cursor, uuid.Max)
	if err != nil {
		return err
	}
	all, more, err := network.List(c.ctx, c.db, c.caller, before, int(p.Limit))
	if err != nil {
		return err
	}
	out := &mlsapi.GetInvitationsOutput{Invitations: make([]mlsapi.Invitation, len(all))}
	for i, n := range all {
		out.Invitations[i] = mlsapi.Invitation{
			Service: n.Service, ConvoID: n.ConvoID.String(), Inviter: n.Inviter, DeviceID: n.DeviceID,
			KeyPackageRef: n.Ref.String(), Epoch: n.Epoch, State: string(n.State), Request: present(n.Request),
			CreatedAt: lexcodec.NewDatetime(n.CreatedAt), ExpiresAt: datetime(n.ExpiresAt),
		}
	}
	if more {
		out.Cursor = lexcodec.Pointer(all[len(all)-1].ID.String())
	}
	return c.reply(out)
}
