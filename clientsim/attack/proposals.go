package attack

import (
	"context"

	"golang.org/x/crypto/cryptobyte"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/mls"
)

// S7: proposals of external senders that the group does not list. The group is large.
func proposals() []Attack {
	return []Attack{{"proposals", "S7",
		"16 DIDs of one address send proposals of an external sender to a convo whose group has 4,800 leaves",
		proposeFrom(16)}}
}

func proposeFrom(dids int) prepare {
	return func(ctx context.Context, t *Target) *Prepared {
		accounts := t.accounts(dids + 1)
		c := t.largeGroup(ctx, accounts[dids])
		return &Prepared{Run: func(ctx context.Context) {
			t.repeat(ctx, accounts[:dids], 1, func(account, _ int) (string, []byte) {
				call := xrpc.SendCall(c.id, accounts[account].DID, 2, externalProposal(c.group), "")
				return mlsapi.NSIDSendMessage, call.Body
			})
		}}
	}
}

// largeGroup creates a convo in epoch 2, whose group the server knows from a GroupInfo.
func (t *Target) largeGroup(ctx context.Context, who *xrpc.Account) honestConvo {
	people := leafOwners(who.DID, t.Leaves)
	c := t.client(0)
	id, group := Must2(testbed.NewConvo(ctx, c, who, people[1:], nil))
	info := Must(costlyInfo(ed25519Suite, group, 2, people, t.Leaves, false))
	Must(c.Do(ctx, who, xrpc.Procedure(mlsapi.NSIDSubmitCommit, id, "", &mlsapi.SubmitCommitInput{
		ConvoID: id, Commit: mlsclient.FakeCommit(group, 1, 200), GroupInfo: info})))
	return honestConvo{id: id, group: group}
}

// externalProposal returns a message, in epoch 2, of a group's first external sender. No key has
// signed it.
func externalProposal(group []byte) []byte {
	return build(func(b *cryptobyte.Builder) {
		b.AddUint16(uint16(mls.VersionMLS10))
		b.AddUint16(uint16(mls.WireFormatPublicMessage))
		vector(b, group)
		b.AddUint64(2)
		b.AddUint8(uint8(mls.SenderTypeExternal))
		b.AddUint32(0)
		vector(b, mlsclient.RandomBytes(16))
		b.AddUint8(uint8(mls.ContentTypeProposal))
		b.AddUint16(uint16(mls.ProposalRemove))
		b.AddUint32(1)
		vector(b, mlsclient.RandomBytes(64))
	})
}
