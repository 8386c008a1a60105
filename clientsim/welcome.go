package clientsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
)

// savedWelcome is a Welcome on the disk: written before it is joined with and
// removed when the server knows.
type savedWelcome struct {
	ConvoID string `json:"convoId"`
	Welcome []byte `json:"welcome"`
	Ref     string `json:"ref"`
	Joined  bool   `json:"joined"`
	GroupID []byte `json:"groupId,omitempty"`
}

// AskWelcome fetches this device's Welcome and keeps it in memory only: the
// app may be killed now.
func (p *Phone) AskWelcome(ctx context.Context, convo string) (*mlsapi.GetWelcomeOutput, error) {
	if p.device == nil {
		return nil, ErrKilled
	}
	refs := []string{""}
	if p.shared {
		refs = p.device.Refs()
	}
	var err error
	for _, ref := range refs {
		var answer Answer
		answer, err = p.net.Do(ctx, p.Account, welcomeCall(convo, ref))
		if ErrorName(err) == mlsapi.ErrWelcomeNotFound {
			continue // it was made for another of this device's KeyPackages
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

// KeepWelcome writes a fetched Welcome to the disk.
func (p *Phone) KeepWelcome(out *mlsapi.GetWelcomeOutput) error {
	return p.writeWelcome(&savedWelcome{ConvoID: out.ConvoID, Welcome: out.Welcome, Ref: *out.KeyPackageRef}, map[string][]byte{})
}

func (p *Phone) writeWelcome(w *savedWelcome, changes map[string][]byte) error {
	if p.device == nil {
		return ErrKilled
	}
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	changes[welcomePrefix+w.ConvoID] = data
	return p.save(changes)
}

func (p *Phone) readWelcome(convo string) (*savedWelcome, error) {
	data, ok := p.disk.Read(welcomePrefix + convo)
	if !ok {
		return nil, fmt.Errorf("%s: no Welcome on the disk for %s", p.Name, convo)
	}
	w := &savedWelcome{}
	if err := json.Unmarshal(data, w); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return w, nil
}

// JoinKept joins with the Welcome on the disk. Joining twice is joining once.
func (p *Phone) JoinKept(convo string) error {
	w, err := p.readWelcome(convo)
	if err != nil || w.Joined {
		return err
	}
	if p.device == nil {
		return ErrKilled
	}
	group, err := p.device.Join(w.Welcome)
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

// startReading opens a thread for a device that has just come into the group.
// One that was in it before starts its reading anew.
func (p *Phone) startReading(t *Thread, changes map[string][]byte) error {
	for _, name := range p.disk.List(inboxPrefix + t.ConvoID + "/") {
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
	out, err := p.confirm(ctx, confirmCall(convo, w.Ref, true, ""))
	if err != nil {
		return err
	}
	if !out.Confirmed {
		return errors.New("confirmWelcome answered confirmed: false")
	}
	return p.save(map[string][]byte{welcomePrefix + convo: nil})
}

func (p *Phone) confirm(ctx context.Context, call Call) (*mlsapi.ConfirmWelcomeOutput, error) {
	answer, err := p.net.Do(ctx, p.Account, call)
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
	out, err := p.AskWelcome(ctx, convo)
	if err != nil {
		return err
	}
	if err := p.KeepWelcome(out); err != nil {
		return err
	}
	return p.FinishJoin(ctx, convo)
}

// FinishJoin goes on where an app was killed that had its Welcome on the disk.
func (p *Phone) FinishJoin(ctx context.Context, convo string) error {
	if err := p.JoinKept(convo); err != nil {
		return err
	}
	if err := p.Confirm(ctx, convo); err != nil {
		return err
	}
	return p.Sync(ctx, convo)
}
