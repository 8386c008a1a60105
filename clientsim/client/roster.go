package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// ErrNoPackages says that an account has no KeyPackage left to claim.
var ErrNoPackages = errors.New("clientsim: no KeyPackages to claim")

// Claim fetches one KeyPackage of each device of the given accounts. After a lost answer, the key
// makes the second request the same claim.
func (p *Phone) Claim(ctx context.Context, convo string, dids []syntax.DID) (_ [][]byte, err error) {
	defer Catch(&err)
	out := Must(p.ClaimAny(ctx, xrpc.ClaimCall(dids, p.Suite, convo, xrpc.NewKey())))
	packages := make([][]byte, len(out.KeyPackages))
	for i := range out.KeyPackages {
		packages[i] = out.KeyPackages[i].KeyPackage
	}
	if len(out.Missing) > 0 {
		return nil, fmt.Errorf("%s: of %v: %w", p.Name, out.Missing, ErrNoPackages)
	}
	return packages, nil
}

// ClaimAny claims the KeyPackages that there are, even if some accounts have none. A one-time
// KeyPackage must go to one claim only.
func (p *Phone) ClaimAny(ctx context.Context, call xrpc.Call) (_ *mlsapi.GetKeyPackagesOutput, err error) {
	defer Catch(&err)
	out := Must(ask[mlsapi.GetKeyPackagesOutput](ctx, p, call))
	var oneTime [][]byte
	for _, kp := range out.KeyPackages {
		last, err := mlsclient.IsLastResort(kp.KeyPackage)
		Check(errs.Wrap(err, "%s: getKeyPackages", p.Name))
		if kp.LastResort == nil || *kp.LastResort != last {
			return nil, fmt.Errorf("%s: getKeyPackages says lastResort %s of a KeyPackage that says %t", p.Name,
				xrpc.Show(kp.LastResort), last)
		}
		if !last {
			oneTime = append(oneTime, kp.KeyPackage)
		}
	}
	Check(errs.Wrap(p.Model.Claimed(call.Key, oneTime), "%s", p.Name))
	return out, nil
}

// Create makes a convo with these members, and retries until the convo is acknowledged.
func (p *Phone) Create(ctx context.Context, members ...syntax.DID) (_ string, err error) {
	defer Catch(&err)
	var packages [][]byte
	if len(members) > 0 {
		packages = Must(p.Claim(ctx, "", members))
	}
	draft := Must(p.DraftCreate(members, packages))
	answer := Must(p.Deliver(ctx, draft))
	out := Must(xrpc.Decode[mlsapi.CreateConvoOutput](answer.Body))
	return out.ID, nil
}

// Add adds members, and retries until the commit is acknowledged. Then it reads the log up to the
// commit. If the commit loses its epoch, Add makes it again from the same KeyPackages, because the
// server has stored no Welcome for them.
func (p *Phone) Add(ctx context.Context, convo string, dids ...syntax.DID) (err error) {
	defer Catch(&err)
	packages := Must(p.Claim(ctx, convo, dids))
	return p.Commit(ctx, convo, func() (*Draft, error) { return p.DraftAdd(convo, dids, packages) })
}

// InviteAgain repeats the invitation of a member that never joined: one commit removes its leaves
// and adds its devices anew.
func (p *Phone) InviteAgain(ctx context.Context, convo string, did syntax.DID) (err error) {
	defer Catch(&err)
	packages := Must(p.Claim(ctx, convo, []syntax.DID{did}))
	return p.Commit(ctx, convo, func() (*Draft, error) { return p.DraftInviteAgain(convo, did, packages) })
}

// Remove removes a member. The phone is the creator's, or the member has already left.
func (p *Phone) Remove(ctx context.Context, convo string, did syntax.DID) error {
	return p.Commit(ctx, convo, func() (*Draft, error) {
		group, err := p.Group(convo)
		if err != nil || !slices.Contains(group.Members(), did.String()) {
			return nil, err // another member's commit removed it
		}
		return p.DraftRemove(convo, did)
	})
}

// Commit makes a commit in the present epoch, again and again. It ends when the server accepts a
// commit or when draft returns nil.
func (p *Phone) Commit(ctx context.Context, convo string, draft func() (*Draft, error)) error {
	for range maxEpochRaces {
		if err := p.Sync(ctx, convo); err != nil {
			return err
		}
		d, err := draft()
		if err != nil || d == nil {
			return err
		}
		_, err = p.Deliver(ctx, d)
		if err == nil {
			return p.Sync(ctx, convo)
		}
		if xrpc.ErrorName(err) != mlsapi.ErrEpochMismatch {
			return err
		}
	}
	return fmt.Errorf("%s: lost the epoch %d times", p.Name, maxEpochRaces)
}

// Leave leaves a convo.
func (p *Phone) Leave(ctx context.Context, convo string) (err error) {
	defer Catch(&err)
	draft := Must(p.DraftLeave(convo))
	_, err = p.Deliver(ctx, draft)
	return err
}

// Convo asks the server for a convo.
func (p *Phone) Convo(ctx context.Context, convo string) (_ *mlsapi.ConvoView, err error) {
	defer Catch(&err)
	out := Must(ask[mlsapi.GetConvoOutput](ctx, p, xrpc.ConvoCall(convo)))
	return &out.Convo, nil
}

// Roster asks the server for a convo's members.
func (p *Phone) Roster(ctx context.Context, convo string) (_ []syntax.DID, err error) {
	defer Catch(&err)
	view := Must(p.Convo(ctx, convo))
	var dids []syntax.DID
	for i := range view.Members {
		dids = append(dids, view.Members[i].DID)
	}
	return dids, nil
}

// CommitRemovals commits the removal of every account that has left. No account can commit its own
// removal.
func (p *Phone) CommitRemovals(ctx context.Context, convo string) error {
	// The account can be added again while this phone drafts the removal. Then the server refuses the
	// removal.
	for refusals := 0; ; {
		var gone syntax.DID
		err := p.Commit(ctx, convo, func() (_ *Draft, err error) {
			if gone, err = p.leaver(ctx, convo); err != nil || gone == "" {
				return nil, err
			}
			return p.DraftRemove(convo, gone)
		})
		if xrpc.ErrorName(err) == mlsapi.ErrNotPermitted && refusals < 5 {
			refusals++
			if err = p.Sync(ctx, convo); err == nil {
				continue
			}
		}
		if err != nil || gone == "" {
			return err
		}
	}
}

// leaver finds an account that is in the group and not on the roster. It asks for the roster before
// every commit, because the account may have been added again.
func (p *Phone) leaver(ctx context.Context, convo string) (_ syntax.DID, err error) {
	defer Catch(&err)
	roster := Must(p.Roster(ctx, convo))
	group := Must(p.Group(convo))
	for _, id := range group.Members() {
		if !slices.Contains(roster, syntax.DID(id)) {
			return syntax.DID(id), nil
		}
	}
	return "", nil
}

// Home asks which delivery service a person has chosen. The answer is "" if the person has chosen
// none.
func (p *Phone) Home(ctx context.Context, did syntax.DID) (syntax.DID, error) {
	out, err := ask[mlsapi.GetDeliveryServiceOutput](ctx, p, xrpc.HomeCall(did))
	if err != nil || out.DeliveryService == nil {
		return "", err
	}
	return *out.DeliveryService, nil
}

// ClaimAbroad claims the available KeyPackages of people whose home is this service, for a convo of
// another service. Each KeyPackage has a receipt, the id of its device and a ref.
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
