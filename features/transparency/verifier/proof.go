package verifier

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// Proof shows somebody who has not read the log that it has an entry: in a report of abuse, for
// example. In JSON, byte strings are standard base64.
type Proof struct {
	Kind      int       `json:"kind"`
	Epoch     int64     `json:"epoch"` // from the entry's MLS header
	CreatedAt time.Time `json:"createdAt"`
	BodyHash  []byte    `json:"bodyHash"` // SHA-256 of the ciphertext
	Salt      []byte    `json:"salt"`     // of the sender: see TagOf
	Hashes    [][]byte  `json:"hashes"`   // the proof of getLogProof for the head's size
}

// OpenProven opens a head with the keys of a service. It fails if none of the keys has signed the
// head.
func OpenProven(text string, keys []string) (*Head, error) { return Open(text, keyList(keys)) }

// CheckProof checks a Proof in JSON: the entry seq is in the log under the head, and its sender is
// sender.
func (h *Head) CheckProof(seq int64, sender, text string) error {
	var p Proof
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return fmt.Errorf("the proof is no JSON of a proof: %w", err)
	}
	if len(p.BodyHash) != tlog.HashSize || len(p.Salt) != saltSize || seq < 1 || seq > h.Size {
		return errors.New("the proof does not fit the entry and the head")
	}
	hashes := make(tlog.RecordProof, len(p.Hashes))
	for i, hash := range p.Hashes {
		if len(hash) != tlog.HashSize {
			return errors.New("the proof has a hash of another size")
		}
		hashes[i] = Hash(hash)
	}
	leaf := Entry{Seq: seq, Kind: p.Kind, Epoch: p.Epoch, At: p.CreatedAt, Body: Hash(p.BodyHash),
		Tag: TagOf(p.Salt, sender)}.Leaf()
	if err := tlog.CheckRecord(hashes, h.Size, h.Root, seq-1, leaf); err != nil {
		return errors.New("the log under the head has no such entry of this sender")
	}
	return nil
}
