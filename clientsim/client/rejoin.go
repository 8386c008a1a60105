package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// LoseState loses everything on the phone's disk. With keepKey the device keeps its signature key,
// as if that had been stored elsewhere. Without it, this is a new device in place of the old one.
func (p *Phone) LoseState(keepKey bool) (err error) {
	defer Catch(&err)
	if p.Device == nil {
		return ErrKilled
	}
	device := Must(p.Device.Reborn(keepKey))
	p.FormerKey = p.Device.SignatureKey()
	// The server may still hand out KeyPackages of the lost device.
	p.Device, p.Threads, p.Disk, p.HasSiblings = device, map[string]*Thread{}, NewDisk(), true
	return p.Save(nil)
}

// GroupInfo asks the server for the GroupInfo of the convo's present epoch.
func (p *Phone) GroupInfo(ctx context.Context, convo string) (_ []byte, err error) {
	defer Catch(&err)
	out := Must(ask[mlsapi.GetGroupInfoOutput](ctx, p, xrpc.GroupInfoCall(convo)))
	info, err := mlsclient.ReadInfo(out.GroupInfo)
	Check(errs.Wrap(err, "%s: getGroupInfo", p.Name))
	if int64(info.Epoch) != out.Epoch {
		return nil, fmt.Errorf("%s: getGroupInfo says epoch %d, and the GroupInfo %d", p.Name, out.Epoch, info.Epoch)
	}
	return out.GroupInfo, nil
}

// Recover loses the phone's state, and rejoins every convo that its account is still in.
func (p *Phone) Recover(ctx context.Context, keepKey bool) (err error) {
	defer Catch(&err)
	convos := slices.Sorted(maps.Keys(p.Threads))
	Check(p.LoseState(keepKey))
	for _, convo := range convos {
		if !p.Model.Live(convo, p.Account.DID) {
			continue
		}
		Check(p.Rejoin(ctx, convo))
	}
	return nil
}

// ComeBack enters a convo whose Welcome is lost (ErrWelcomeLost). If the server has the GroupInfo,
// the phone makes an external commit. Else it starts again as a new device with fresh KeyPackages,
// and asks a member to invite its account again. It starts again because many MLS libraries, like
// the simulator's, refuse to remove and add one signature key in the same commit.
func (p *Phone) ComeBack(ctx context.Context, convo string, member *Phone) (err error) {
	defer Catch(&err)
	err = p.Rejoin(ctx, convo)
	switch {
	case err == nil:
		return p.Save(map[string][]byte{welcomePrefix + convo: nil})
	case xrpc.ErrorName(err) != mlsapi.ErrGroupInfoNotFound:
		return err
	}
	Check(p.LoseState(false))
	Check(p.Publish(ctx, 2))
	Check(member.InviteAgain(ctx, convo, p.Account.DID))
	return p.Join(ctx, convo)
}

// Rejoin enters a convo of this account by external commit, until it is acknowledged, and reads on
// from there.
func (p *Phone) Rejoin(ctx context.Context, convo string) (err error) {
	defer Catch(&err)
	for range maxEpochRaces {
		info := Must(p.GroupInfo(ctx, convo))
		d := Must(p.DraftRejoin(convo, info))
		if _, err = p.Deliver(ctx, d); err == nil {
			return p.Sync(ctx, convo)
		}
		if xrpc.ErrorName(err) != mlsapi.ErrEpochMismatch {
			return err
		}
	}
	return errors.New(p.Name + ": never caught the epoch to rejoin in")
}
