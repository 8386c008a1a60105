package verifier

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Head says what the log of a convo was at one moment. Its text is a checkpoint, in the form in
// which transparency logs sign checkpoints (https://c2sp.org/tlog-checkpoint).
type Head struct {
	Service    string // the server's DID
	ConvoID    string
	Size       int64 // entries
	Root       Hash
	Generation int64 // of the server's database; a restore begins another generation
	At         time.Time
}

const (
	generationLine = "generation "
	timeLine       = "time "
	timeLayout     = "2006-01-02T15:04:05.000Z"
	// MaxNote is the longest text of a signed head that is read, in bytes.
	MaxNote = 4096
)

// Text is what is signed.
func (h *Head) Text() string {
	return fmt.Sprintf("%s/%s\n%d\n%s\n%s%d\n%s%s\n", h.Service, h.ConvoID, h.Size,
		base64.StdEncoding.EncodeToString(h.Root[:]),
		generationLine, h.Generation, timeLine, h.At.UTC().Format(timeLayout))
}

// Sign returns the signed text of a head.
func Sign(h *Head, keys ...note.Signer) (string, error) {
	text, err := note.Sign(&note.Note{Text: h.Text()}, keys...)
	return string(text), err
}

// errForm says that a text is no head.
var errForm = errors.New("it has not the form of a head")

// Open checks the signature of a head with any of the keys, and reads it. Keys that have not signed
// the head do not matter.
func Open(text string, keys note.Verifiers) (*Head, error) {
	if len(text) > MaxNote {
		return nil, errForm
	}
	n, err := note.Open([]byte(text), keys)
	if err != nil {
		return nil, err
	}
	h, err := parse(n.Text)
	if err != nil {
		return nil, err
	}
	if h.Text() != n.Text { // one spelling only
		return nil, errForm
	}
	return h, nil
}

func parse(text string) (*Head, error) {
	lines := strings.Split(text, "\n")
	const count = 6 // the last line is empty
	if len(lines) != count {
		return nil, errForm
	}
	slash := strings.LastIndexByte(lines[0], '/')
	root, err := base64.StdEncoding.DecodeString(lines[2])
	if slash < 0 || err != nil || len(root) != tlog.HashSize {
		return nil, errForm
	}
	h := &Head{Service: lines[0][:slash], ConvoID: lines[0][slash+1:], Root: Hash(root)}
	generation, ok := strings.CutPrefix(lines[3], generationLine)
	at, timed := strings.CutPrefix(lines[4], timeLine)
	if !ok || !timed {
		return nil, errForm
	}
	if h.Size, err = strconv.ParseInt(lines[1], 10, 64); err != nil || h.Size < 0 {
		return nil, errForm
	}
	if h.Generation, err = strconv.ParseInt(generation, 10, 64); err != nil {
		return nil, errForm
	}
	if h.At, err = time.Parse(timeLayout, at); err != nil {
		return nil, errForm
	}
	return h, nil
}

// The algorithm of Ed25519 in keys of signed notes.
const algorithmEd25519 = 1

// PublicKey is the text of a key that checks heads of a service: name, hash and key.
func PublicKey(service string, key ed25519.PublicKey) (string, error) {
	return note.NewEd25519VerifierKey(service, key)
}

// Signer signs heads of a service.
func Signer(service string, key ed25519.PrivateKey) (note.Signer, error) {
	public, err := PublicKey(service, key.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	v, err := note.NewVerifier(public)
	if err != nil {
		return nil, err
	}
	secret := base64.StdEncoding.EncodeToString(append([]byte{algorithmEd25519}, key.Seed()...))
	return note.NewSigner(fmt.Sprintf("PRIVATE+KEY+%s+%08x+%s", service, v.KeyHash(), secret))
}

// keyList makes the keys of a service usable. It skips texts that are no keys.
func keyList(texts []string) note.Verifiers {
	var all []note.Verifier
	for _, t := range texts {
		if v, err := note.NewVerifier(t); err == nil {
			all = append(all, v)
		}
	}
	return note.VerifierList(all...)
}
