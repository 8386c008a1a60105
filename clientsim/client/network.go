package client

import (
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Home asks which delivery service a person has chosen. It is "" if there is none.
func (p *Phone) Home(ctx context.Context, did syntax.DID) (syntax.DID, error) {
	out, err := ask[mlsapi.GetDeliveryServiceOutput](ctx, p, xrpc.HomeCall(did))
	if err != nil || out.DeliveryService == nil {
		return "", err
	}
	return *out.DeliveryService, nil
}

// ClaimAbroad claims what there is of the KeyPackages of people whose home this service is, for a convo
// of another service. Each has a receipt, an id of its device and a ref.
func (p *Phone) ClaimAbroad(ctx context.Context, dids []syntax.DID) (_ []mlsapi.KeyPackageRef, err error) {
	defer Catch(&err)
	out := Must(p.ClaimAny(ctx, xrpc.ReceiptsCall(dids, p.Suite, xrpc.NewKey())))
	for _, k := range out.KeyPackages {
		if k.Receipt == nil || k.DeviceID == nil || k.KeyPackageRef == nil {
			return nil, fmt.Errorf("%s: getKeyPackages: no receipt, deviceId or ref of %s", p.Name, k.DID)
		}
	}
	return out.KeyPackages, nil
}

// maxInvitations is how many invitations a page has.
const maxInvitations = 20

// Invitations lists the account's invitations to convos of other services, the newest first.
func (p *Phone) Invitations(ctx context.Context) (all []mlsapi.Invitation, err error) {
	defer Catch(&err)
	for cursor := ""; ; {
		page := Must(ask[mlsapi.GetInvitationsOutput](ctx, p, xrpc.InvitationsCall(cursor, maxInvitations)))
		all = append(all, page.Invitations...)
		if page.Cursor == nil {
			return all, nil
		}
		cursor = *page.Cursor
	}
}
