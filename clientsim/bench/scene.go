package bench

import (
	"context"
	"math/rand/v2"

	"mlsd/clientsim"
)

// scene is convos, those who send to them, and what they send.
type scene struct {
	senders []*clientsim.Account
	convos  []*convo
	drafts  [][]*draft // by sender
	members int
	body    int
	real    bool // the ciphertexts were made by MLS devices, and not hollow
}

// plan says what a scene is to be.
type plan struct {
	convos  int
	members int // of each convo
	body    int // bytes of a ciphertext
	// pool is how many ciphertexts each member that sends has in each convo.
	pool int
	// cast is how many members of a convo send, and have a device; 0: as many as may have one.
	cast int
}

// maxTroupe is how many members of one convo have a device; in larger convos the others have nothing but their place on the roster.
const maxTroupe = 64

// maxReal is the largest ciphertext that devices make: what they would spend on larger ones tells nothing of the server.
const maxReal = 64 << 10

// newScene makes the convos of a plan among the senders. Whoever has a device in a convo sends to it. The group has gone through as
// many epochs as the convo, so that the servers take what its devices encrypt.
func (b *bench) newScene(ctx context.Context, p plan, senders []*clientsim.Account) (*scene, error) {
	s := &scene{senders: senders, convos: make([]*convo, p.convos), drafts: make([][]*draft, len(senders)), members: p.members, body: p.body,
		real: p.body <= maxReal}
	made := make([][]*draft, p.convos)
	casting := min(p.members, len(senders), maxTroupe)
	if p.cast > 0 {
		casting = min(casting, p.cast)
	}
	first := len(b.convos) // so that no two convos of a benchmark have the same index
	err := eachOf(setupLanes, p.convos, func(i int) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		cast, at := make([]*clientsim.Account, casting), make([]int, casting)
		for k := range cast {
			at[k] = (i + k*(1+i/len(senders)%(len(senders)/casting))) % len(senders)
			cast[k] = senders[at[k]]
		}
		c, err := b.stage.newConvo(ctx, first+i, cast, p.members)
		if err != nil {
			return err
		}
		s.convos[i] = c
		made[i], err = b.write(c, cast, at, p)
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
	rng := rand.New(rand.NewPCG(b.c.Seed, uint64(first)))
	for _, drafts := range s.drafts {
		rng.Shuffle(len(drafts), func(i, j int) { drafts[i], drafts[j] = drafts[j], drafts[i] })
	}
	return s, nil
}

// write makes the ciphertexts that the cast sends to a convo.
func (b *bench) write(c *convo, cast []*clientsim.Account, at []int, p plan) ([]*draft, error) {
	encrypt := func(int) ([]byte, error) {
		around := len(clientsim.HollowMessage(c.group, c.epoch, p.body)) - p.body
		return clientsim.HollowMessage(c.group, c.epoch, max(p.body-around, 0)), nil
	}
	if p.body <= maxReal {
		group, err := newTroupe(c.group, c.epoch, cast)
		if err != nil {
			return nil, err
		}
		encrypt = func(k int) ([]byte, error) { return group.encrypt(k, p.body) }
	}
	var drafts []*draft
	for k, account := range cast {
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
