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
}

// convoPlan says how a convoSet is to be.
type convoPlan struct {
	convos  int
	members int // of each convo
	body    int // bytes of a ciphertext
	// pool is how many ciphertexts each sender has in each convo.
	pool int
	// senders is how many members of a convo send; 0: up to mostSending.
	senders int
}

// mostSending is how many members of one convo send. The others are only on the roster.
const mostSending = 64

// newConvoSet makes the convos of a plan, and what is sent to them.
func (b *bench) newConvoSet(ctx context.Context, p convoPlan, senders []*xrpc.Account) (*convoSet, error) {
	s := &convoSet{senders: senders, convos: make([]*convo, p.convos), drafts: make([][]*draft, len(senders)),
		members: p.members, body: p.body}
	made := make([][]*draft, p.convos)
	sending := min(p.members, len(senders), mostSending)
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
		made[i], err = draftsFor(c, accounts, at, p)
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

// draftsFor makes the messages that the accounts send to a convo. Their ciphertexts are fake: an MLS
// header and random bytes. The server cannot see that.
func draftsFor(c *convo, accounts []*xrpc.Account, at []int, p convoPlan) (drafts []*draft, err error) {
	around := len(mlsclient.FakeMessage(c.group, c.epoch, p.body)) - p.body
	for k, account := range accounts {
		for range p.pool {
			d, err := newDraft(c, at[k], account, mlsclient.FakeMessage(c.group, c.epoch, p.body-around))
			if err != nil {
				return nil, err
			}
			drafts = append(drafts, d)
		}
	}
	return drafts, nil
}
