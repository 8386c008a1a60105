package idem

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"sort"
)

// Field is one top-level field of a request's input, as canonical JSON of its decoded value.
type Field struct {
	Name string
	JSON []byte
}

// Content is a request's input without its idempotency key, sorted by field name. Arrays keep their
// order.
type Content []Field

// Hash is the SHA-256 of the content as one JSON object.
func (c Content) Hash() [sha256.Size]byte {
	h := sha256.New()
	for i, f := range c {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		h.Write([]byte{sep, '"'})
		h.Write([]byte(f.Name)) // lexicon field names need no escaping
		h.Write([]byte{'"', ':'})
		h.Write(f.JSON)
	}
	h.Write([]byte{'}'})
	return [sha256.Size]byte(h.Sum(nil))
}

// DerivedKey is the key of a request without one. It is for writes whose content allows only one
// effect, such as a commit or a new group: the same bytes again are the same request. It cannot
// collide with the key of another method or caller, because each caller and method has its own
// keys.
func (c Content) DerivedKey() string {
	sum := c.Hash()
	return "sha256:" + hex.EncodeToString(sum[:])
}

// fieldHashes returns the hex SHA-256 of each field, by name. It shows which fields differ, but not
// their values.
func (c Content) fieldHashes() map[string]string {
	hashes := make(map[string]string, len(c))
	for _, f := range c {
		sum := sha256.Sum256(f.JSON)
		hashes[f.Name] = hex.EncodeToString(sum[:])
	}
	return hashes
}

// differing returns the names of the fields whose values are not the same in a and b, sorted.
func differing(a, b map[string]string) []string {
	var names []string
	for name, hash := range a {
		if b[name] != hash {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

// conflict returns a *ConflictError if r records another request than req.
func (r record) conflict(req Request) error {
	hash := req.Input.Hash()
	if bytes.Equal(r.requestHash, hash[:]) {
		return nil
	}
	return &ConflictError{Fields: differing(r.fieldHashes, req.Input.fieldHashes()), At: r.createdAt}
}
