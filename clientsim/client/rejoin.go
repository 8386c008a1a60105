package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// LoseState loses everything on the phone's disk. With keepKey, the device keeps its signature key,
// as if the key had been stored elsewhere. Without keepKey, a new device takes the place of the old
// one.
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

// Rejoin enters a convo of this account by external commit, and retries until the commit is
// acknowledged. The phone reads the log from there.
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

// kindReset is the draft of a reset.
const kindReset draftKind = "reset"

// DraftReset starts a new group with the devices of the KeyPackages, and journals that the new
// group replaces the convo's group. The old group stays until the phone has read its log to the
// end.
func (p *Phone) DraftReset(convo, reason string, packages [][]byte) (_ *Draft, err error) {
	defer CatchIn(&err, "%s", p.Name)
	if p.Device == nil {
		return nil, ErrKilled
	}
	groupID := make([]byte, 16)
	rand.Read(groupID) // never fails
	group := Must(p.Device.Create(groupID))
	staged := Must(group.StageAdd(packages...))
	return p.Journal(&Draft{
		Kind: kindReset, GroupID: groupID, Epoch: staged.Epoch, WithInfo: true,
		Call: xrpc.ResetCall(convo, reason, staged, xrpc.NewKey()),
	}, nil)
}

func (p *Phone) acknowledgeReset(d *Draft, answer xrpc.Answer, changes map[string][]byte) (err error) {
	defer Catch(&err)
	out := Must(xrpc.Decode[mlsapi.ResetConvoOutput](answer.Body))
	if out.Convo.GroupID != hex.EncodeToString(d.GroupID) || out.Convo.Epoch != int64(d.Epoch) ||
		out.Convo.PredecessorConvoID == nil || *out.Convo.PredecessorConvoID != d.Convo() {
		return fmt.Errorf("want group %x at epoch %d, in the place of %s", d.GroupID, d.Epoch, d.Convo())
	}
	return p.openCreated(d, out.Convo.ID, changes)
}

// successorID finds the successor in a refusal, or in the last entry of a log.
var successorID = regexp.MustCompile(`successorConvoId[= ]([0-9a-f-]{36})`)

// SuccessorIn returns the successor that a refusal names, or "".
func SuccessorIn(err error) string {
	if xrpc.ErrorName(err) != mlsapi.ErrConvoClosed {
		return ""
	}
	return successorIn(err.Error())
}

func successorIn(text string) string {
	if found := successorID.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}

// GoOn reads the log of a reset convo to its end, and enters the successor: with the Welcome for
// this device, or by external commit. If the convo is open, GoOn returns the convo itself. A device
// that cannot process a commit of the old group does not read what comes after that commit.
func (p *Phone) GoOn(ctx context.Context, convo string) (next string, err error) {
	defer Catch(&err)
	failed := new(CommitError)
	if err := p.Sync(ctx, convo); err != nil && !errors.As(err, &failed) {
		return "", err
	}
	thread, _ := Must2(p.Open(convo))
	if next = thread.Successor; next == "" { // the device is stuck before the entry that names it
		view, err := p.Convo(ctx, convo)
		if err != nil || view.SuccessorConvoID == nil {
			return convo, err
		}
		next = *view.SuccessorConvoID
	}
	if _, joined := p.Threads[next]; joined {
		return next, nil
	}
	err = p.Join(ctx, next)
	if xrpc.ErrorName(err) == mlsapi.ErrWelcomeNotFound || errors.Is(err, ErrWelcomeLost) {
		err = p.Rejoin(ctx, next)
	}
	return next, err
}

// SendOn sends a text into the convo, or into its successor. It returns the convo that has the
// text.
func (p *Phone) SendOn(ctx context.Context, convo, text string) (where string, err error) {
	for {
		err = p.Send(ctx, convo, text)
		if SuccessorIn(err) == "" {
			return convo, err
		}
		if convo, err = p.GoOn(ctx, convo); err != nil {
			return convo, err
		}
	}
}
