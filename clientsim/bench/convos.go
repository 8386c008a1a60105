package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"slices"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// convo is one convo on the servers.
type convo struct {
	id     string
	group  []byte
	epoch  uint64
	base   int64         // the last seq before the load
	filled int64         // entries up to this one are not from the load, and nobody reads them; 0 means none
	reader *xrpc.Account // the member whose account reads the log
	drafts []*draft
}

// draft is a message that is sent again and again, each time with another idempotency key. For the
// server, each is a new message.
type draft struct {
	convo  *convo
	sender *sender
	sum    [sha256.Size]byte // of the ciphertext
	// before and after are the parts of the request's body before and after the key.
	before, after []byte
}

// setupLanes is how many requests run at one time during the preparation.
const setupLanes = 16

// makeConvos makes the convos, and the messages for them.
func (b *bench) makeConvos(ctx context.Context) {
	c := b.c
	b.say("making %d convos of %d members", c.Convos, c.Members)
	b.convos = make([]*convo, c.Convos)
	known := min(c.Members, len(b.senders)) // members that are senders
	const drafts, most = 2048, 64 << 20     // of all convos; in bytes
	each := max(1, min(drafts, most/c.Body)/(c.Convos*known))
	Each(setupLanes, c.Convos, func(i int) {
		Check(context.Cause(ctx))
		members, accounts := make([]*sender, known), make([]*xrpc.Account, known)
		for k := range known {
			members[k] = b.senders[(i+k)%len(b.senders)]
			accounts[k] = members[k].Account
		}
		b.convos[i] = b.env.newConvo(ctx, accounts, c.Members, func(*convo) {})
		for _, member := range members {
			for range each {
				b.convos[i].addDraft(member, c.Body)
			}
		}
	})
	for _, c := range b.convos {
		b.drafts = append(b.drafts, c.drafts...)
	}
	rng := rand.New(rand.NewPCG(c.Seed, uint64(c.Convos)))
	rng.Shuffle(len(b.drafts), func(i, j int) { b.drafts[i], b.drafts[j] = b.drafts[j], b.drafts[i] })
	b.note("ciphertexts: an MLS header and random bytes; sent in turn, each time under another idempotency key")
}

// keyMark marks the place of the key in a request. It is as long as a UUID.
const keyMark = "00000000-mlsd-key-goes-in-here-00000"

// addDraft adds a message to a convo. Its ciphertext of a size is fake: an MLS header and random
// bytes. The server cannot detect that.
func (c *convo) addDraft(by *sender, size int) {
	header := len(mlsclient.FakeMessage(c.group, c.epoch, size)) - size
	ciphertext := mlsclient.FakeMessage(c.group, c.epoch, size-header)
	call := xrpc.SendCall(c.id, by.DID, c.epoch, ciphertext, keyMark)
	before, after, ok := bytes.Cut(call.Body, []byte(keyMark))
	if !ok || bytes.Contains(after, []byte(keyMark)) {
		Fail("the key does not stand in the request as it is")
	}
	c.drafts = append(c.drafts,
		&draft{convo: c, sender: by, sum: sha256.Sum256(ciphertext), before: before, after: after})
}

// Bounds of the contract.
const (
	foundersAtOnce = 100 // members that createConvo accepts besides the creator
	addedAtOnce    = 50  // members that addMembers accepts
)

// newConvo makes a convo of the given members and of as many other accounts as size requires. The
// first member creates it. It begins in epoch 1. createConvo and addMembers accept a limited number
// of members, so fake commits add the rest. The server cannot detect that they are fake. fill is
// called before the commits.
func (s *environment) newConvo(ctx context.Context, members []*xrpc.Account, size int, fill func(*convo)) *convo {
	all := slices.Concat(members, s.accounts(max(size-len(members), 0)))
	founders := all[1:min(len(all), 1+foundersAtOnce)]
	c := &convo{epoch: 1, reader: members[0]}
	c.id, c.group = Must2(testbed.NewConvo(ctx, s.client, members[0], testbed.DIDsOf(founders), nil))
	fill(c)
	for some := range slices.Chunk(all[1+len(founders):], addedAtOnce) {
		staged := &mlsclient.Staged{Commit: mlsclient.FakeCommit(c.group, c.epoch, 200),
			Welcome: mlsclient.FakeWelcome(mlsclient.SuiteX25519, s.lastResorts(ctx, some)...)}
		call := xrpc.AddCall(c.id, testbed.DIDsOf(some), staged, xrpc.NewKey())
		out := Must(xrpc.Ask[mlsapi.AddMembersOutput](ctx, s.client, members[0], call))
		if out.Seq == nil || out.NewEpoch != int64(c.epoch)+1 {
			Fail("addMembers answered %+v", out)
		}
		c.epoch, c.base = c.epoch+1, *out.Seq
	}
	return c
}

// lastResorts publishes a last-resort KeyPackage of a new device of each account, and returns the
// refs. The devices can be added any number of times.
func (s *environment) lastResorts(ctx context.Context, accounts []*xrpc.Account) [][]byte {
	refs := make([][]byte, len(accounts))
	Each(setupLanes, len(accounts), func(i int) {
		published := Must(testbed.Publish(ctx, s.client, accounts[i], 0, true))
		refs[i] = Must(hex.DecodeString(published[0].Ref))
	})
	return refs
}
