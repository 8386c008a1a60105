package bench

import (
	"context"
	"math/rand/v2"

	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/xrpc"
)

// convoSet is a set of convos with their senders and ciphertexts.
type convoSet struct {
	senders []*xrpc.Account
	convos  []*convo
	drafts  [][]*draft // by sender
	members int
	body    int
	real    bool // MLS devices made the ciphertexts
}

// convoPlan says how a convoSet is to be.
type convoPlan struct {
	convos  int
	members int // of each convo
	body    int // bytes of a ciphertext
	// pool is how many ciphertexts each sender has in each convo.
	pool int
	// senders is how many members of a convo have a device and send; 0: up to maxDevices.
	senders int
}

// maxDevices is how many members of one convo have a device. The others are only on the roster.
const maxDevices = 64

// maxReal is the size of the largest ciphertext that MLS devices make. Larger ones are fake,
// because encrypting them would only cost time of the load.
const maxReal = 64 << 10

// newConvoSet makes the convos of a plan. Every member with a device sends. The MLS group is in the
// same epoch as the convo, so the servers accept its messages.
func (b *bench) newConvoSet(ctx context.Context, p convoPlan, senders []*xrpc.Account) (*convoSet, error) {
	s := &convoSet{senders: senders, convos: make([]*convo, p.convos), drafts: make([][]*draft, len(senders)), members: p.members, body: p.body,
		real: p.body <= maxReal}
	made := make([][]*draft, p.convos)
	sending := min(p.members, len(senders), maxDevices)
	if p.senders > 0 {
		sending = min(sending, p.senders)
	}
	err := eachOf(setupLanes, p.convos, func(i int) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		accounts, at := make([]*xrpc.Account, sending), make([]int, sending)
		for k := range accounts {
			at[k] = (i + k*(1+i/len(senders)%(len(senders)/sending))) % len(senders)
			accounts[k] = senders[at[k]]
		}
		c, err := b.env.newConvo(ctx, accounts, p.members)
		if err != nil {
			return err
		}
		s.convos[i] = c
		made[i], err = b.encryptFor(c, accounts, at, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	b.convos = append(b.convos, s.convos...)
	for _, drafts := range made {
		for _, d := range drafts {
			s.drafts[d.sender] = append(s.drafts[d.sender], d)
		}
	}
	rng := rand.New(rand.NewPCG(b.c.Seed, uint64(len(b.convos))))
	for _, drafts := range s.drafts {
		rng.Shuffle(len(drafts), func(i, j int) { drafts[i], drafts[j] = drafts[j], drafts[i] })
	}
	return s, nil
}

// encryptFor makes the ciphertexts that the accounts send to a convo.
func (b *bench) encryptFor(c *convo, accounts []*xrpc.Account, at []int, p convoPlan) ([]*draft, error) {
	encrypt := func(int) ([]byte, error) {
		around := len(mlsclient.FakeMessage(c.group, c.epoch, p.body)) - p.body
		return mlsclient.FakeMessage(c.group, c.epoch, max(p.body-around, 0)), nil
	}
	if p.body <= maxReal {
		group, err := newMLSGroup(c.group, c.epoch, accounts)
		if err != nil {
			return nil, err
		}
		encrypt = func(k int) ([]byte, error) { return group.encrypt(k, p.body) }
	}
	var drafts []*draft
	for k, account := range accounts {
		for range p.pool {
			ciphertext, err := encrypt(k)
			if err != nil {
				return nil, err
			}
			d, err := newDraft(c, at[k], account, ciphertext)
			if err != nil {
				return nil, err
			}
			drafts = append(drafts, d)
		}
	}
	return drafts, nil
}
