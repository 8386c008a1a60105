package bench

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"

	"mlsd/api/mlsapi"
	"mlsd/clientsim"
)

// draft is a message that is sent again and again, each time under another idempotency key: to the server these are as many
// messages. So it is encrypted once, and that before the time counts.
type draft struct {
	convo  *convo
	sender int // of the accounts
	sum    [sha256.Size]byte
	// before and after are the request's body on both sides of the key.
	before, after []byte
}

// keySize is the length of a UUID in text.
const keySize = 36

// keyMark stands for the key until it is known.
const keyMark = "00000000-mlsd-key-goes-in-here-00000"

func newDraft(c *convo, sender int, account *clientsim.Account, ciphertext []byte) (*draft, error) {
	mark := keyMark
	in := mlsapi.SendMessageInput{
		ConvoID: c.id, SenderDID: account.DID, Epoch: int64(c.epoch), Ciphertext: ciphertext, IdempotencyKey: &mark,
	}
	body := in.AppendJSON(nil)
	before, after, ok := bytes.Cut(body, []byte(keyMark))
	if !ok || len(keyMark) != keySize || bytes.Contains(after, []byte(keyMark)) {
		return nil, errors.New("the key does not stand in the request as it is")
	}
	return &draft{convo: c, sender: sender, sum: sha256.Sum256(ciphertext), before: before, after: after}, nil
}

// bodySize is the length of the request's body.
func (d *draft) bodySize() int { return len(d.before) + keySize + len(d.after) }

// troupe is a real MLS group: one device for each of the accounts that send to a convo.
type troupe struct {
	groups []clientsim.Group // in the accounts' order
}

// newTroupe makes a group that is in the given epoch, which is at least 1: the first account's device is alone in it until it adds
// the others by its last commit.
func newTroupe(groupID []byte, epoch uint64, accounts []*clientsim.Account) (*troupe, error) {
	var devices []clientsim.Device
	var packages [][]byte
	for i, account := range accounts {
		device, err := clientsim.NewDevice(account.DID.String(), clientsim.SuiteX25519)
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
	t := &troupe{groups: []clientsim.Group{first}}
	var welcome []byte
	for first.Epoch() < epoch {
		var change clientsim.Change
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

// encrypt makes a PrivateMessage of exactly so many bytes, by the member i.
func (t *troupe) encrypt(i, size int) ([]byte, error) {
	plain := max(size-200, 0)
	for range 4 { // a length is in front of itself, so that the first guess may be wrong, and that behind it too
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
