package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
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
func (p *Phone) FetchWelcome(ctx context.Context, convo string) (*mlsapi.GetWelcomeOutput, error) {
	if p.Device == nil {
		return nil, ErrKilled
	}
	refs := []string{""}
	if p.HasSiblings {
		refs = p.Device.Refs()
	}
	var err error
	for _, ref := range refs {
		var answer xrpc.Answer
		answer, err = p.Net.Do(ctx, p.Account, xrpc.WelcomeCall(convo, ref))
		if xrpc.ErrorName(err) == mlsapi.ErrWelcomeNotFound {
			continue // the Welcome was made for another KeyPackage of this device
		}
		if err != nil {
			return nil, err
		}
		out, err := mlsapi.DecodeGetWelcomeOutput(answer.Body)
		if err != nil {
			return nil, fmt.Errorf("%s: getWelcome: %w", p.Name, err)
		}
		if out.KeyPackageRef == nil || out.State == nil || out.GraceExpiresAt == nil {
			return nil, fmt.Errorf("%s: getWelcome: no ref, state or grace", p.Name)
		}
		return out, nil
	}
	return nil, err
}

// SaveWelcome writes a fetched Welcome to the disk.
func (p *Phone) SaveWelcome(out *mlsapi.GetWelcomeOutput) error {
	return p.writeWelcome(&savedWelcome{ConvoID: out.ConvoID, Welcome: out.Welcome, Ref: *out.KeyPackageRef}, map[string][]byte{})
}

func (p *Phone) writeWelcome(w *savedWelcome, changes map[string][]byte) error {
	if p.Device == nil {
		return ErrKilled
	}
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	changes[welcomePrefix+w.ConvoID] = data
	return p.Save(changes)
}

func (p *Phone) readWelcome(convo string) (*savedWelcome, error) {
	data, ok := p.Disk.Read(welcomePrefix + convo)
	if !ok {
		return nil, fmt.Errorf("%s: no Welcome on the disk for %s", p.Name, convo)
	}
	w := &savedWelcome{}
	if err := json.Unmarshal(data, w); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return w, nil
}

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
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	w.Joined, w.GroupID = true, group.ID()
	changes := map[string][]byte{}
	if err := p.startReading(&Thread{ConvoID: convo, GroupID: group.ID(), Entered: group.Epoch()}, changes); err != nil {
		return err
	}
	return p.writeWelcome(w, changes)
}

// startReading opens a thread for a device that has just joined the group. A device that was in the
// group before starts again.
func (p *Phone) startReading(t *Thread, changes map[string][]byte) error {
	for _, name := range p.Disk.List(inboxPrefix + t.ConvoID + "/") {
		changes[name] = nil
	}
	return p.openThread(t, changes)
}

// Confirm tells the server that the join worked, and forgets the Welcome.
func (p *Phone) Confirm(ctx context.Context, convo string) error {
	w, err := p.readWelcome(convo)
	if err != nil {
		return err
	}
	out, err := p.ConfirmWith(ctx, xrpc.ConfirmCall(convo, w.Ref, true, ""))
	if err != nil {
		return err
	}
	if !out.Confirmed {
		return errors.New("confirmWelcome answered confirmed: false")
	}
	return p.Save(map[string][]byte{welcomePrefix + convo: nil})
}

// ConfirmWith sends a prepared confirmWelcome and decodes its answer.
func (p *Phone) ConfirmWith(ctx context.Context, call xrpc.Call) (*mlsapi.ConfirmWelcomeOutput, error) {
	answer, err := p.Net.Do(ctx, p.Account, call)
	if err != nil {
		return nil, err
	}
	out, err := mlsapi.DecodeConfirmWelcomeOutput(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: confirmWelcome: %w", p.Name, err)
	}
	return out, nil
}

// Join enters a convo that this account was added to: fetch, keep, join,
// confirm, read.
func (p *Phone) Join(ctx context.Context, convo string) error {
	out, err := p.FetchWelcome(ctx, convo)
	if err != nil {
		return err
	}
	if err := p.SaveWelcome(out); err != nil {
		return err
	}
	return p.FinishJoin(ctx, convo)
}

// FinishJoin continues after a kill that left the Welcome on the disk.
func (p *Phone) FinishJoin(ctx context.Context, convo string) error {
	if err := p.JoinSaved(convo); err != nil {
		return err
	}
	if err := p.Confirm(ctx, convo); err != nil {
		return err
	}
	return p.Sync(ctx, convo)
}
