package idem

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
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
	h.Write([]byte{'{'})
	for i, f := range c {
		if i > 0 {
			h.Write([]byte{','})
		}
		h.Write([]byte{'"'})
		h.Write([]byte(f.Name)) // lexicon field names need no escaping
		h.Write([]byte{'"', ':'})
		h.Write(f.JSON)
	}
	h.Write([]byte{'}'})
	return [sha256.Size]byte(h.Sum(nil))
}

// KeyOr returns the given key, or a key derived from the content of a request without a key.
// Callers use it for writes whose content allows only one effect, such as a commit or a new group:
// the same bytes again are the same request. The derived key cannot collide with the key of another
// method or caller, because each caller and method has its own keys.
func (c Content) KeyOr(given string) string {
	if given != "" {
		return given
	}
	sum := c.Hash()
	return "sha256:" + hex.EncodeToString(sum[:])
}

// fieldHashes returns the hex SHA-256 of each field, by path. The path of a field inside an object
// is the object's path, a dot and the field's name, as in metadata.name. The hashes show which
// fields differ, but not their values.
func (c Content) fieldHashes() map[string]string {
	hashes := make(map[string]string, len(c))
	for _, f := range c {
		addHashes(hashes, f.Name, f.JSON)
	}
	return hashes
}

// addHashes adds the hash of a value. If the value is an object, it also adds the hashes of the
// object's fields.
func addHashes(hashes map[string]string, path string, value []byte) {
	sum := sha256.Sum256(value)
	hashes[path] = hex.EncodeToString(sum[:])
	if !bytes.HasPrefix(value, []byte("{")) || bytes.HasPrefix(value, []byte(`{"$bytes":`)) {
		return // clients see bytes as one value
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(value, &fields) != nil {
		return // cannot happen: a canonical value is valid JSON
	}
	for name, inner := range fields {
		addHashes(hashes, path+"."+name, inner)
	}
}

// differing returns the paths of the fields whose values differ in a and b, sorted. If fields
// inside an object differ, it returns the paths of these fields, and not the object's path.
func differing(a, b map[string]string) []string {
	paths := differingIn("", a, b)
	slices.Sort(paths)
	return paths
}

// differingIn is differing for fields whose path is prefix and one name.
func differingIn(prefix string, a, b map[string]string) (paths []string) {
	seen := map[string]bool{}
	for _, hashes := range []map[string]string{a, b} {
		for path := range hashes {
			name, inside := strings.CutPrefix(path, prefix)
			if !inside || strings.Contains(name, ".") || seen[path] {
				continue
			}
			seen[path] = true
			if a[path] == b[path] {
				continue
			}
			if inner := path + "."; hasInside(a, inner) && hasInside(b, inner) {
				paths = append(paths, differingIn(inner, a, b)...)
			} else {
				paths = append(paths, path)
			}
		}
	}
	return paths
}

func hasInside(hashes map[string]string, prefix string) bool {
	for path := range hashes {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// conflict returns a *ConflictError if r is the record of another request than req.
func (r record) conflict(req Request) error {
	hash := req.Input.Hash()
	if bytes.Equal(r.requestHash, hash[:]) {
		return nil
	}
	return &ConflictError{
		Fields: differing(r.fieldHashes, req.Input.fieldHashes()), At: r.createdAt, Expires: r.expiresAt,
		First: r.requestHash, Hash: hash[:],
	}
}
