package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
)

// Phase says how far MakeGood goes. A client goes on to the next one when the log has not grown for
// a while: docs/RECOVERY.md says how long.
type Phase int

const (
	// ResendMessages sends again what belongs to the epoch that the server is in.
	ResendMessages Phase = iota
	// ResendCommits also sends again the commit that ends this epoch.
	ResendCommits
	// GiveUp waits for nobody any more. The device enters the group at the server's epoch, and
	// encrypts again what no longer fits.
	GiveUp
)

// Regained is what one call of MakeGood did.
type Regained struct {
	Same     int    // writes that the server took again, byte for byte
	Anew     int    // messages that were encrypted again, and members that were invited again
	Rejoined bool   // by external commit
	Waiting  string // what the phone waits for, or ""
}

// Progress reports whether the call changed anything on the server.
func (r Regained) Progress() bool { return r.Same+r.Anew > 0 || r.Rejoined }

// MakeGood sends again what the server has lost of a convo: the same bytes under the same keys, as
// far as they fit the epoch that the server is in. It reads the log before and after that. The
// caller calls it until nothing is waited for.
func (p *Phone) MakeGood(ctx context.Context, convo string, phase Phase) (r Regained, err error) {
	err = p.Sync(ctx, convo)
	switch forked := errors.Is(err, ErrForked); {
	case xrpc.ErrorName(err) == mlsapi.ErrNotMember: // it has left, or was removed
		return r, nil
	case xrpc.ErrorName(err) == mlsapi.ErrConvoNotFound:
		r.Waiting = "the commit that added it"
		if phase == GiveUp {
			err = p.withdrawUsed(ctx, convo)
			return r, err
		}
		return r, nil
	case err != nil && !forked:
		return r, err
	case !forked:
		if err := p.resend(ctx, convo, phase, &r); err != nil {
			return r, err
		}
	}
	ahead, err := p.ahead(ctx, convo)
	if err != nil {
		return r, err
	}
	if ahead {
		if phase < GiveUp || r.Progress() {
			r.Waiting = "a commit of another device"
			return r, nil
		}
		r.Rejoined = true
		if err := p.Rejoin(ctx, convo); err != nil {
			return r, err
		}
	}
	if phase == GiveUp {
		err = p.writeAnew(ctx, convo, &r)
	}
	return r, err
}

// ahead reports whether the phone's group has left the epoch that the server is in, or has another
// history.
func (p *Phone) ahead(ctx context.Context, convo string) (bool, error) {
	err := p.Sync(ctx, convo)
	if errors.Is(err, ErrForked) {
		return true, nil
	}
	if err != nil {
		if xrpc.ErrorName(err) == mlsapi.ErrNotMember { // its leave was sent again
			return false, nil
		}
		return false, err
	}
	group, err := p.Group(convo)
	if err != nil {
		return false, err
	}
	view, err := p.Convo(ctx, convo)
	if err != nil {
		return false, err
	}
	return group.Epoch() > uint64(view.Epoch), nil
}

// resend sends a convo's lost drafts in their order, until one has to wait for other devices.
func (p *Phone) resend(ctx context.Context, convo string, phase Phase, r *Regained) error {
	lost, err := p.lostDrafts(convo)
	if err != nil || len(lost) == 0 {
		return err
	}
	view, err := p.Convo(ctx, convo)
	if err != nil {
		return err
	}
	epoch := uint64(view.Epoch)
	for i := range lost {
		k := &lost[i]
		switch {
		case k.Kind == kindSend && k.Epoch == epoch:
		case k.Kind == kindLeave && r.Waiting == "":
		case k.isCommit() && k.Epoch == epoch+1 && phase >= ResendCommits:
		default:
			r.Waiting = fmt.Sprintf("its %s of epoch %d, and the server is in %d", k.Kind, k.Epoch, epoch)
			continue
		}
		taken, err := p.sendKept(ctx, k)
		if err != nil {
			return err
		}
		if !taken {
			r.Waiting = fmt.Sprintf("its %s of epoch %d, which is refused", k.Kind, k.Epoch)
			continue
		}
		r.Same++
		if k.isCommit() {
			epoch = k.Epoch
		}
	}
	return nil
}

// lostDrafts returns the acknowledged drafts of a convo that the log does not have. The phone has
// read the log to its end.
func (p *Phone) lostDrafts(convo string) ([]keptDraft, error) {
	thread, _, err := p.Open(convo)
	if err != nil {
		return nil, err
	}
	items, err := p.Inbox(convo)
	if err != nil {
		return nil, err
	}
	there := map[history.Digest]bool{}
	for _, item := range items {
		there[item.Digest] = true
	}
	kept, err := p.keptDrafts(convo)
	return slices.DeleteFunc(kept, func(k keptDraft) bool {
		return there[k.Digest] || k.Kind != kindLeave && !thread.Rewound && k.Epoch < thread.Entered
	}), err
}

// isCommit reports whether the draft moves the epoch.
func (d *Draft) isCommit() bool {
	return d.Kind == kindAdd || d.Kind == kindRemove || d.Kind == kindCommit || d.Kind == kindRejoin
}

// sendKept sends an acknowledged draft again. taken is false if the server refuses it.
func (p *Phone) sendKept(ctx context.Context, k *keptDraft) (taken bool, err error) {
	answer, err := p.Net.Do(ctx, p.Account, k.Call)
	var named *xrpc.CallError
	if errors.As(err, &named) && named.Status/100 == 4 && named.Status != http.StatusUnauthorized {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if k.Kind == kindRejoin { // the group was entered when the commit was acknowledged first
		out, err := mlsapi.DecodeProcessExternalCommitOutput(answer.Body)
		if err != nil {
			return false, err
		}
		p.Model.Acknowledged(p.Account, k.Call)
		return true, p.Model.Committed(k.Convo(), k.Digest, out.Seq)
	}
	if err := p.Acknowledge(&k.Draft, answer); err != nil {
		return false, err
	}
	return true, p.Save(map[string][]byte{k.name: nil})
}

// writeAnew encrypts the lost messages again, in the present epoch, and makes the lost additions
// again. Other lost commits only changed keys, or are made again by any member.
func (p *Phone) writeAnew(ctx context.Context, convo string, r *Regained) error {
	lost, err := p.lostDrafts(convo)
	if err != nil {
		return err
	}
	for i := range lost {
		k := &lost[i]
		switch k.Kind {
		case kindSend:
			changes := map[string][]byte{k.name: nil, looseName(convo, k.Digest): nil}
			if err := errors.Join(p.Send(ctx, convo, k.Text), p.Save(changes)); err != nil {
				return err
			}
			r.Anew++
		case kindAdd:
			if err := p.addAnew(ctx, convo, k); err != nil {
				return err
			}
			r.Anew++
		case kindLeave:
			if taken, err := p.sendKept(ctx, k); err != nil || !taken {
				return fmt.Errorf("%s: its leave is refused: %w", p.Name, err)
			}
			r.Same++
		default:
			if err := p.Save(map[string][]byte{k.name: nil}); err != nil {
				return err
			}
		}
	}
	return nil
}

// addAnew adds those members of a lost addition that are not on the roster.
func (p *Phone) addAnew(ctx context.Context, convo string, k *keptDraft) error {
	roster, err := p.Roster(ctx, convo)
	if err != nil {
		return err
	}
	for _, did := range k.DIDs {
		if slices.Contains(roster, did) {
			continue
		}
		if err := p.Add(ctx, convo, did); err != nil {
			return err
		}
	}
	return p.Save(map[string][]byte{k.name: nil})
}

// MakeGoodPackages publishes the KeyPackages again whose publication the server may have lost. Those
// that it has are duplicates. A used one comes back too: the commit that used it needs it.
func (p *Phone) MakeGoodPackages(ctx context.Context) error {
	kept, err := p.keptDrafts("")
	if err != nil {
		return err
	}
	for i := range kept {
		if k := &kept[i]; k.Kind == kindPublish || k.Kind == kindPublishMany {
			if _, err := p.Net.Do(ctx, p.Account, k.Call); err != nil {
				return err
			}
		}
	}
	return nil
}

// withdrawUsed withdraws the KeyPackage by which the phone joined a convo, if the addition does not
// come back. The server may hand it out again, and the phone has no key for it any more.
func (p *Phone) withdrawUsed(ctx context.Context, convo string) error {
	ref, ok := p.Disk.Read(usedPrefix + convo)
	if !ok {
		return nil
	}
	device := sha256.Sum256(p.Device.SignatureKey())
	if _, err := p.Net.Do(ctx, p.Account, xrpc.WithdrawCall(hex.EncodeToString(device[:]), xrpc.NewKey(), string(ref))); err != nil {
		return err
	}
	return p.Save(map[string][]byte{usedPrefix + convo: nil})
}
