package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// savedWelcome is a Welcome on the disk. It is written before the phone joins with it, and removed
// when the server has the confirmation.
type savedWelcome struct {
	ConvoID string `json:"convoId"`
	Welcome []byte `json:"welcome"`
	Ref     string `json:"ref"`
	Joined  bool   `json:"joined"`
	GroupID []byte `json:"groupId,omitempty"`
}

// FetchWelcome fetches this device's Welcome and keeps it in memory only.
func (p *Phone) FetchWelcome(ctx context.Context, convo string) (_ *mlsapi.GetWelcomeOutput, err error) {
	defer Catch(&err)
	if p.Device == nil {
		return nil, ErrKilled
	}
	refs := []string{""}
	if p.HasSiblings {
		refs = p.Device.Refs()
	}
	for _, ref := range refs {
		var answer xrpc.Answer
		answer, err = p.Net.Do(ctx, p.Account, xrpc.WelcomeCall(convo, ref))
		if xrpc.ErrorName(err) == mlsapi.ErrWelcomeNotFound {
			continue // the Welcome was made for another KeyPackage of this device
		}
		Check(err)
		out, err := xrpc.Decode[mlsapi.GetWelcomeOutput](answer.Body)
		Check(errs.Wrap(err, "%s: getWelcome", p.Name))
		if out.KeyPackageRef == nil || out.State == nil || out.GraceExpiresAt == nil {
			return nil, fmt.Errorf("%s: getWelcome: no ref, state or grace", p.Name)
		}
		return out, nil
	}
	return nil, err
}

// SaveWelcome writes a fetched Welcome to the disk.
func (p *Phone) SaveWelcome(out *mlsapi.GetWelcomeOutput) error {
	return p.writeWelcome(&savedWelcome{ConvoID: out.ConvoID, Welcome: out.Welcome, Ref: *out.KeyPackageRef},
		map[string][]byte{})
}

func (p *Phone) writeWelcome(w *savedWelcome, changes map[string][]byte) (err error) {
	defer Catch(&err)
	if p.Device == nil {
		return ErrKilled
	}
	data := Must(json.Marshal(w))
	changes[welcomePrefix+w.ConvoID] = data
	return p.Save(changes)
}

func (p *Phone) readWelcome(convo string) (*savedWelcome, error) {
	data, ok := p.Disk.Read(welcomePrefix + convo)
	if !ok {
		return nil, fmt.Errorf("%s: no Welcome on the disk for %s", p.Name, convo)
	}
	w := &savedWelcome{}
	return w, errs.Wrap(json.Unmarshal(data, w), "%s", p.Name)
}

// errCannotJoin says that the device cannot join with the bytes of its Welcome.
var errCannotJoin = errors.New("clientsim: cannot join with the Welcome")

// ErrWelcomeLost says that this device will not join with its Welcome: the bytes are damaged, or
// they were consumed before the device kept them. The device needs a way back: see ComeBack.
var ErrWelcomeLost = errors.New("clientsim: the Welcome is lost")

// JoinSaved joins with the Welcome on the disk. Joining a second time changes nothing.
func (p *Phone) JoinSaved(convo string) error {
	w, err := p.readWelcome(convo)
	if err != nil || w.Joined {
		return err
	}
	if p.Device == nil {
		return ErrKilled
	}
	group, err := p.Device.Join(w.Welcome)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", p.Name, errCannotJoin, err)
	}
	w.Joined, w.GroupID = true, group.ID()
	changes := map[string][]byte{usedPrefix + convo: []byte(w.Ref)}
	if err := p.startReading(&Thread{ConvoID: convo, GroupID: group.ID(), Entered: group.Epoch()}, changes); err != nil {
		return err
	}
	return p.writeWelcome(w, changes)
}

// startReading opens a thread for a device that has just joined the group. If the device was in the
// group before, its old entries are removed.
func (p *Phone) startReading(t *Thread, changes map[string][]byte) error {
	for _, folder := range []string{inboxPrefix, loosePrefix, seenPrefix} {
		for _, name := range p.Disk.List(folder + t.ConvoID + "/") {
			changes[name] = nil
		}
	}
	if err := p.dropKept(t.ConvoID, changes); err != nil {
		return err
	}
	return p.openThread(t, changes)
}

// Confirm tells the server that the join worked, and forgets the Welcome.
func (p *Phone) Confirm(ctx context.Context, convo string) (err error) {
	defer Catch(&err)
	w := Must(p.readWelcome(convo))
	out := Must(p.ConfirmWith(ctx, xrpc.ConfirmCall(convo, w.Ref, true, "")))
	if !out.Confirmed {
		return errors.New("confirmWelcome answered confirmed: false")
	}
	return p.Save(map[string][]byte{welcomePrefix + convo: nil})
}

// ConfirmWith sends a prepared confirmWelcome and decodes its answer.
func (p *Phone) ConfirmWith(ctx context.Context, call xrpc.Call) (*mlsapi.ConfirmWelcomeOutput, error) {
	return ask[mlsapi.ConfirmWelcomeOutput](ctx, p, call)
}

// Join enters a convo that this account was added to: fetch, keep, join, confirm, read. If joining
// fails, the phone reports the failure to the server, and tries once more with the server's next
// answer. The bytes stay on the disk. Error: ErrWelcomeLost, if the second attempt fails, or if
// neither the server nor the disk has a Welcome.
func (p *Phone) Join(ctx context.Context, convo string) error {
	var failed error
	for range 2 {
		out, err := p.FetchWelcome(ctx, convo)
		switch {
		case xrpc.ErrorName(err) == mlsapi.ErrWelcomeConsumed && !p.hasWelcome(convo):
			return fmt.Errorf("%w: %w", ErrWelcomeLost, err)
		case xrpc.ErrorName(err) == mlsapi.ErrWelcomeConsumed: // the bytes were kept in time
		case err != nil:
			return err
		default:
			if err := p.SaveWelcome(out); err != nil {
				return err
			}
		}
		if failed = p.FinishJoin(ctx, convo); !errors.Is(failed, errCannotJoin) {
			return failed
		}
	}
	return fmt.Errorf("%w: %w", ErrWelcomeLost, failed)
}

func (p *Phone) hasWelcome(convo string) bool {
	_, ok := p.Disk.Read(welcomePrefix + convo)
	return ok
}

// maxDetails bounds what a phone says of a failed join, in bytes. The server takes 1,024.
const maxDetails = 200

// reportFailure tells the server why joining has failed. It returns cause, together with the error
// of the report, if there is one.
func (p *Phone) reportFailure(ctx context.Context, convo string, cause error) error {
	w, err := p.readWelcome(convo)
	if err != nil {
		return errors.Join(cause, err)
	}
	details := cause.Error()
	_, err = p.ConfirmWith(ctx,
		xrpc.ConfirmCall(convo, w.Ref, false, strings.ToValidUTF8(details[:min(len(details), maxDetails)], "")))
	return errors.Join(cause, err)
}

// FinishJoin continues after a kill that left the Welcome on the disk.
func (p *Phone) FinishJoin(ctx context.Context, convo string) (err error) {
	defer Catch(&err)
	if err := p.JoinSaved(convo); errors.Is(err, errCannotJoin) {
		return p.reportFailure(ctx, convo, err)
	} else {
		Check(err)
	}
	Check(p.Confirm(ctx, convo))
	return p.Sync(ctx, convo)
}
