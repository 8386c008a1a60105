package attack

import (
	"context"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// S3: accounts that cost nothing use up the number of open invitations that a person can have.
func invitations() []Attack {
	return []Attack{
		{"invitations-one", "S3", "one DID invites one person as fast as it may", inviteOne(1, 3)},
		{"invitations-address", "S3", "200 DIDs of one address invite one person as fast as they may", inviteOne(200, 20)},
	}
}

// newcomersInvite is how many newcomers invite the person per second. All of them use the honest
// address, whose share they must not use up during a run.
const newcomersInvite = 0.4

// inviteOne invites a person who accepts nothing, at most most times. Newcomers invite that person
// too.
func inviteOne(dids int, most float64) prepare {
	return func(_ context.Context, t *Target) *Prepared {
		accounts := t.accounts(dids)
		h, person := t.honest, []syntax.DID{unknownDID()}
		t.Bystanders = append(t.Bystanders, Operation{"newcomer's invitation", newcomersInvite,
			func(ctx context.Context, _ int) (_ time.Duration, err error) {
				defer Catch(&err)
				a := Must(h.env.Account(int(h.nth.Add(1))))
				_, err = h.client.Once(ctx, a, createCall(mlsclient.RandomBytes(16), person))
				return 0, err
			}})
		return t.bounded("invitations of the attacker that the person has", most,
			func(i int) (*xrpc.Account, xrpc.Call) {
				return accounts[i%dids], createCall(mlsclient.RandomBytes(16), person)
			})
	}
}
