package bench

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	"mlsd/clientsim/xrpc"
)

// draft is a message that is sent again and again, each time under another idempotency key. For the
// server these are different messages. So it is encrypted only once, before the measurement.
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

func newDraft(c *convo, sender int, account *xrpc.Account, ciphertext []byte) (*draft, error) {
	mark := keyMark
	in := mlsapi.SendMessageInput{
		ConvoID: c.id, SenderDID: account.DID, Epoch: int64(c.epoch), Ciphertext: ciphertext, IdempotencyKey: &mark,
	}
	body := xrpc.Encode(in)
	before, after, ok := bytes.Cut(body, []byte(keyMark))
	if !ok || len(keyMark) != keySize || bytes.Contains(after, []byte(keyMark)) {
		return nil, errors.New("the key does not stand in the request as it is")
	}
	return &draft{convo: c, sender: sender, sum: sha256.Sum256(ciphertext), before: before, after: after}, nil
}

// bodySize is the length of the request's body.
func (d *draft) bodySize() int { return len(d.before) + keySize + len(d.after) }

// mlsGroup is a real MLS group with one device for each account that sends to a convo.
type mlsGroup struct {
	groups []mlsclient.Group // in the accounts' order
}

// newMLSGroup makes a group in the given epoch, which is at least 1. The first account's device is
// alone in it until its last commit adds the others.
func newMLSGroup(groupID []byte, epoch uint64, accounts []*xrpc.Account) (*mlsGroup, error) {
	var devices []mlsclient.Device
	var packages [][]byte
	for i, account := range accounts {
		device, err := mlsclient.NewDevice(account.DID.String(), mlsclient.SuiteX25519)
		if err != nil {
			return nil, err
		}
		devices = append(devices, device)
		if i == 0 {
			continue
		}
		kp, err := device.KeyPackage()
		if err != nil {
			return nil, err
		}
		packages = append(packages, kp.Message)
	}
	first, err := devices[0].Create(groupID)
	if err != nil {
		return nil, err
	}
	t := &mlsGroup{groups: []mlsclient.Group{first}}
	var welcome []byte
	for first.Epoch() < epoch {
		var change mlsclient.Change
		if first.Epoch() == epoch-1 {
			change.Add = packages
		}
		staged, err := first.Stage(change)
		if err != nil {
			return nil, err
		}
		if err := first.Confirm(); err != nil {
			return nil, err
		}
		welcome = staged.Welcome
	}
	for _, device := range devices[1:] {
		group, err := device.Join(welcome)
		if err != nil {
			return nil, err
		}
		t.groups = append(t.groups, group)
	}
	return t, nil
}

// encrypt makes a PrivateMessage of exactly size bytes by member i.
func (t *mlsGroup) encrypt(i, size int) ([]byte, error) {
	plain := max(size-200, 0)
	for range 4 { // the length of a length varies, so the first guesses may be wrong
		ciphertext, err := t.groups[i].Encrypt(make([]byte, plain))
		if err != nil {
			return nil, err
		}
		if len(ciphertext) == size || plain+size < len(ciphertext) {
			return ciphertext, nil
		}
		plain += size - len(ciphertext)
	}
	return nil, fmt.Errorf("no plaintext makes a ciphertext of %d bytes", size)
}
