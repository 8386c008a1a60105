package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// DeviceID is the phone's device id, as it follows from its KeyPackages.
func (p *Phone) DeviceID() string {
	sum := sha256.Sum256(p.Device.SignatureKey())
	return hex.EncodeToString(sum[:])
}

// Registered takes the answer to registerPushTarget, and returns the secret that signs the pushes.
func (p *Phone) Registered(b *PushTarget, call xrpc.Call, answer xrpc.Answer) (secret string, err error) {
	out, err := xrpc.Decode[mlsapi.RegisterPushTargetOutput](answer.Body)
	if err != nil {
		return "", fmt.Errorf("%s: registerPushTarget: %w", p.Name, err)
	}
	if out.Secret == nil || len(*out.Secret) != 43 {
		return "", fmt.Errorf("%s: registerPushTarget: no secret in %q", p.Name, answer.Body)
	}
	p.Model.Acknowledged(p.Account, call)
	b.acceptSecret(*out.Secret)
	return *out.Secret, nil
}

// Register registers b for the phone's device, and returns the secret that signs the pushes.
func (p *Phone) Register(ctx context.Context, b *PushTarget) (secret string, err error) {
	defer Catch(&err)
	call := xrpc.RegisterCall(b.Device, b.URL, xrpc.NewKey())
	answer := Must(p.Net.Do(ctx, p.Account, call))
	return p.Registered(b, call, answer)
}

// Unregister removes the device's push target, and reports whether there was one.
func (p *Phone) Unregister(ctx context.Context, b *PushTarget) (removed bool, err error) {
	defer Catch(&err)
	call := xrpc.UnregisterCall(b.Device, xrpc.NewKey())
	out := Must(ask[mlsapi.UnregisterPushTargetOutput](ctx, p, call))
	p.Model.Acknowledged(p.Account, call)
	return out.Removed, nil
}

// RegisterAt registers a new target at r for the phone's device.
func (p *Phone) RegisterAt(ctx context.Context, r *Receiver) (*PushTarget, error) {
	b := r.NewTarget(p.DeviceID())
	_, err := p.Register(ctx, b)
	return b, err
}

// HasRead reports whether the phone has decrypted a text.
func (p *Phone) HasRead(convo, text string) (bool, error) {
	inbox, err := p.Inbox(convo)
	return slices.ContainsFunc(inbox, func(i history.Item) bool { return i.Text == text }), err
}
