package clientsim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"mlsd/api/mlsapi"
)

// Lose loses all that the phone had on its disk, as a phone does that fell into
// the water and was restored from nothing. With keepKey the signature key was
// elsewhere and is still there; without it this is a new device in the place of
// the old one.
func (p *Phone) Lose(keepKey bool) error {
	if p.device == nil {
		return ErrKilled
	}
	device, err := p.device.Reborn(keepKey)
	if err != nil {
		return err
	}
	p.former = p.device.SignatureKey()
	// KeyPackages of the lost device may still be handed out.
	p.device, p.threads, p.disk, p.shared = device, map[string]*Thread{}, NewDisk(), true
	return p.save(nil)
}

// GroupInfo asks the server for the GroupInfo of the convo's present epoch.
func (p *Phone) GroupInfo(ctx context.Context, convo string) ([]byte, error) {
	answer, err := p.net.Do(ctx, p.Account, groupInfoCall(convo))
	if err != nil {
		return nil, err
	}
	out, err := mlsapi.DecodeGetGroupInfoOutput(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: getGroupInfo: %w", p.Name, err)
	}
	info, err := ReadInfo(out.GroupInfo)
	if err != nil {
		return nil, fmt.Errorf("%s: getGroupInfo: %w", p.Name, err)
	}
	if int64(info.Epoch) != out.Epoch {
		return nil, fmt.Errorf("%s: getGroupInfo says epoch %d, and the GroupInfo %d", p.Name, out.Epoch, info.Epoch)
	}
	return out.GroupInfo, nil
}

// Recover loses what the phone had and comes back into every convo that its
// account is still in.
func (p *Phone) Recover(ctx context.Context, keepKey bool) error {
	convos := slices.Sorted(maps.Keys(p.threads))
	if err := p.Lose(keepKey); err != nil {
		return err
	}
	for _, convo := range convos {
		if !p.model.live(convo, p.Account.DID) {
			continue
		}
		if err := p.Rejoin(ctx, convo); err != nil {
			return err
		}
	}
	return nil
}

// Rejoin enters a convo of this account by external commit, until it is
// acknowledged, and reads on from there.
func (p *Phone) Rejoin(ctx context.Context, convo string) error {
	for range epochPatience {
		info, err := p.GroupInfo(ctx, convo)
		if err != nil {
			return err
		}
		d, err := p.DraftRejoin(convo, info)
		if err != nil {
			return err
		}
		if _, err = p.Deliver(ctx, d); err == nil {
			return p.Sync(ctx, convo)
		}
		if ErrorName(err) != mlsapi.ErrEpochMismatch {
			return err
		}
	}
	return errors.New(p.Name + ": never caught the epoch to rejoin in")
}
