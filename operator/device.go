package operator

import (
	"context"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/events"
	"mlsd/features/push"
	"mlsd/keypackages"
	"mlsd/people/sessions"
	"mlsd/welcome"
)

var deviceRevoke = Method{
	Noun: "device", Verb: "revoke",
	Usage:  "withdraw what a lost device could get: KeyPackages, Welcomes, pushes, sessions, streams",
	Params: []Param{didParam, {Name: "device", Usage: "the device's id"}}, Write: true, run: revokeDevice,
}

// Revoked is the result of device.revoke.
type Revoked struct {
	DID         syntax.DID `json:"did"`
	DeviceID    string     `json:"device"`
	KeyPackages int64      `json:"keyPackagesWithdrawn"`
	Welcomes    int64      `json:"welcomesEnded"`
	PushTarget  bool       `json:"pushTargetRemoved"`
	Note        string     `json:"note"`
}

// revokeDevice deletes or ends everything that this server stores for a device.
func revokeDevice(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (_ any, err error) {
	did, device := c.did(), c.Params["device"]
	out := Revoked{DID: did, DeviceID: device,
		Note: "The device is still a leaf of its groups: a member has to remove it with a commit. " +
			"It can come back for as long as it has a session at the account's PDS: end that session."}
	// Welcomes are locked before KeyPackages, as in a commit.
	if out.Welcomes, err = welcome.Revoke(ctx, tx, welcome.Device{DID: did, DeviceID: device}); err != nil {
		return nil, err
	}
	if out.KeyPackages, err = keypackages.Withdraw(ctx, tx,
		keypackages.Withdrawal{Owner: did, DeviceID: device}); err != nil {
		return nil, err
	}
	if err := welcome.WithdrawInvitations(ctx, tx, uuid.Nil, welcome.Device{DID: did, DeviceID: device}); err != nil {
		return nil, err
	}
	if out.PushTarget, err = push.Unregister(ctx, tx, did, device); err != nil {
		return nil, err
	}
	if err := sessions.EndDevice(ctx, tx, did, device); err != nil {
		return nil, err
	}
	return out, events.EndDevice(ctx, tx, did, device)
}

var keyPackagesWithdraw = Method{
	Noun: "keypackages", Verb: "withdraw", Usage: "withdraw the KeyPackages of an account, or of one device",
	Params: []Param{didParam, {Name: "device", Usage: "only those of this device", Optional: true}}, Write: true,
	run: func(ctx context.Context, _ *Service, tx pgx.Tx, c Call) (any, error) {
		n, err := keypackages.Withdraw(ctx, tx, keypackages.Withdrawal{Owner: c.did(), DeviceID: c.Params["device"]})
		return Withdrawn{c.did(), n}, err
	},
}

// Withdrawn is the result of keypackages.withdraw.
type Withdrawn struct {
	DID         syntax.DID `json:"did"`
	KeyPackages int64      `json:"keyPackagesWithdrawn"`
}
