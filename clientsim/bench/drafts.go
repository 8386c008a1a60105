package bench

import (
	"bytes"
	"crypto/sha256"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// draft is a message that is sent again and again, each time under another idempotency key. For the
// server these are different messages. So it is made only once, before the measurement.
type draft struct {
	convo  *convo
	sender int // of the accounts
	sum    [sha256.Size]byte
	// before and after are the request's body on both sides of the key.
	before, after []byte
}

// keySize is the length of a UUID in text.
const keySize = 36

// keyMark stands in the request where the key will be.
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
