package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"math/rand/v2"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// convoSet holds the convos with their senders and ciphertexts.
type convoSet struct {
	convos []*convo
	drafts [][]*draft // messages of each sender
}

// maxSending is how many members of one convo send. Other members are only on the roster.
const maxSending = 64

// makeConvos makes the convos, and the messages for them.
func (b *bench) makeConvos(ctx context.Context) {
	c, senders := b.c, b.senders
	b.say("making %d convos of %d members", c.Convos, c.Members)
	s := &convoSet{convos: make([]*convo, c.Convos), drafts: make([][]*draft, len(senders))}
	made := make([][]*draft, c.Convos)
	known := min(c.Members, len(senders)) // members that are senders
	Each(setupLanes, c.Convos, func(i int) {
		Check(context.Cause(ctx))
		accounts, at := make([]*xrpc.Account, known), make([]int, known)
		for k := range accounts {
			at[k] = (i + k*(1+i/len(senders)%(len(senders)/known))) % len(senders)
			accounts[k] = senders[at[k]]
		}
		s.convos[i] = b.env.newConvo(ctx, accounts, c.Members)
		made[i] = draftsFor(s.convos[i], accounts[:min(known, maxSending)], at, c)
	})
	for _, drafts := range made {
		for _, d := range drafts {
			s.drafts[d.sender] = append(s.drafts[d.sender], d)
		}
	}
	rng := rand.New(rand.NewPCG(b.c.Seed, uint64(len(s.convos))))
	for _, drafts := range s.drafts {
		rng.Shuffle(len(drafts), func(i, j int) { drafts[i], drafts[j] = drafts[j], drafts[i] })
	}
	b.note("ciphertexts: an MLS header and random bytes; sent in turn, each time under another idempotency key")
	if c.Members > maxSending {
		b.note("in convos of more than %d members, the others do not send", maxSending)
	}
	b.convos = s
}

// draftsFor makes the messages that the accounts send to a convo. Their ciphertexts are fake: an
// MLS header and random bytes. The server cannot detect that.
func draftsFor(c *convo, accounts []*xrpc.Account, at []int, o *Config) (drafts []*draft) {
	around := len(mlsclient.FakeMessage(c.group, c.epoch, o.Body)) - o.Body
	for k, account := range accounts {
		for range o.pool() {
			drafts = append(drafts, newDraft(c, at[k], account, mlsclient.FakeMessage(c.group, c.epoch, o.Body-around)))
		}
	}
	return drafts
}

// draft is a message that is sent again and again, each time with another idempotency key. For the
// server, these are different messages. So a draft is made only once, before the measurement.
type draft struct {
	convo  *convo
	sender int // index of the account
	sum    [sha256.Size]byte
	// before and after are the parts of the request's body before and after the key.
	before, after []byte
}

// keySize is the length of a UUID in text.
const keySize = 36

// keyMark marks the place of the key in the request.
const keyMark = "00000000-mlsd-key-goes-in-here-00000"

func newDraft(c *convo, sender int, account *xrpc.Account, ciphertext []byte) *draft {
	mark := keyMark
	in := mlsapi.SendMessageInput{
		ConvoID: c.id, SenderDID: account.DID, Epoch: int64(c.epoch), Ciphertext: ciphertext, IdempotencyKey: &mark,
	}
	body := xrpc.Encode(in)
	before, after, ok := bytes.Cut(body, []byte(keyMark))
	if !ok || len(keyMark) != keySize || bytes.Contains(after, []byte(keyMark)) {
		Fail("the key does not stand in the request as it is")
	}
	return &draft{convo: c, sender: sender, sum: sha256.Sum256(ciphertext), before: before, after: after}
}
