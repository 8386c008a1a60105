package mls

import (
	"iter"
	"strconv"

	"golang.org/x/crypto/cryptobyte"
)

// place is the struct of RFC 9420 that a reader is reading, and the section that defines it.
type place struct {
	structure string
	section   string
}

// reader reads the TLS presentation language as RFC 9420 §2.1 extends it. After the first failure,
// every read returns zero and no input is left. So callers need only check for an error at the end.
type reader struct {
	s      cryptobyte.String
	object string
	in     place
	err    *ParseError
	seen   *typeSet   // scratch of extensions: empty between lists
	into   *handshake // if not nil, receives the parts of a PublicMessage
}

func newReader(object string, b []byte) reader {
	return reader{s: b, object: object, in: place{structure: object}}
}

// enter makes another struct the reader's place. It returns the previous place, which the caller
// sets again after the struct.
func (r *reader) enter(structure, section string) place {
	prev := r.in
	r.in = place{structure, section}
	return prev
}

// fail records the first failure and drops the rest of the input.
func (r *reader) fail(kind error, field, reason string) {
	r.s = nil
	if r.err != nil {
		return
	}
	r.err = &ParseError{Object: r.object, Field: r.in.structure, Section: r.in.section, Reason: reason, Kind: kind}
	if field != "" {
		r.err.Field += "." + field
	}
}

func (r *reader) malformed(field, reason string) { r.fail(ErrMalformed, field, reason) }

const cutShort = "cut short"

func (r *reader) u8(field string) (v uint8) {
	if !r.s.ReadUint8(&v) {
		r.malformed(field, cutShort)
	}
	return v
}

func (r *reader) u16(field string) (v uint16) {
	if !r.s.ReadUint16(&v) {
		r.malformed(field, cutShort)
	}
	return v
}

func (r *reader) u32(field string) (v uint32) {
	if !r.s.ReadUint32(&v) {
		r.malformed(field, cutShort)
	}
	return v
}

func (r *reader) u64(field string) (v uint64) {
	if !r.s.ReadUint64(&v) {
		r.malformed(field, cutShort)
	}
	return v
}

// varint reads the length of a vector: 1, 2 or 4 bytes, minimal (§2.1.2).
func (r *reader) varint(field string) int {
	first := r.u8(field)
	prefix := first >> 6
	v := int(first & 0x3f)
	switch prefix {
	case 0:
		return v
	case 3:
		r.failVector(field, "invalid length prefix")
		return 0
	}
	for range 1<<prefix - 1 {
		v = v<<8 | int(r.u8(field))
	}
	if r.err == nil && (prefix == 1 && v < 1<<6 || prefix == 2 && v < 1<<14) {
		r.failVector(field, "length is not minimally encoded")
		return 0
	}
	return v
}

// failVector records that the encoding of a vector's length is invalid.
func (r *reader) failVector(field, reason string) {
	r.in.section = "2.1.2"
	r.malformed(field, reason)
}

// opaque reads opaque field<V>. The result aliases the input.
func (r *reader) opaque(field string) []byte {
	n := r.varint(field)
	if n > len(r.s) {
		r.malformed(field, cutShort)
		return nil
	}
	v := r.s[:n:n]
	r.s = r.s[n:]
	return v
}

// vector reads T field<V>. It calls elem until the vector has no bytes left. Each call must read at
// least one byte or fail. vector returns the vector's content.
func (r *reader) vector(field string, elem func(*reader)) []byte {
	content := r.opaque(field)
	rest := r.s
	r.s = content
	for len(r.s) > 0 {
		elem(r)
	}
	if r.err == nil {
		r.s = rest
	}
	return content
}

// u16s reads uint16 field<V>.
func (r *reader) u16s(field string) u16List {
	v := r.opaque(field)
	if len(v)%2 != 0 {
		r.malformed(field, "not a whole number of entries")
		return nil
	}
	return u16List(v)
}

// optional reads the presence octet of optional<T> (§2.1.1).
func (r *reader) optional(field string) bool {
	switch r.u8(field) {
	case 0:
		return false
	case 1:
		return true
	}
	r.in.section = "2.1.1"
	r.malformed(field, "presence octet is neither 0 nor 1")
	return false
}

// version reads a ProtocolVersion. It refuses all but mls10, because the format of other versions
// is not known.
func (r *reader) version() ProtocolVersion {
	v := ProtocolVersion(r.u16("version"))
	if r.err == nil && v != VersionMLS10 {
		r.fail(ErrUnsupported, "version", "not mls10 but "+strconv.Itoa(int(v)))
	}
	return v
}

// groupID reads a group_id of 1…MaxGroupIDSize bytes.
func (r *reader) groupID() []byte {
	id := r.opaque("group_id")
	switch {
	case r.err != nil:
	case len(id) == 0:
		r.fail(ErrUnsupported, "group_id", "empty")
	case len(id) > MaxGroupIDSize:
		r.fail(ErrUnsupported, "group_id", "longer than "+strconv.Itoa(MaxGroupIDSize)+" bytes")
	}
	return id
}

// epoch reads an epoch of at most MaxEpoch.
func (r *reader) epoch() uint64 {
	e := r.u64("epoch")
	if e > MaxEpoch {
		r.fail(ErrUnsupported, "epoch", "above 2^53-1")
	}
	return e
}

// since returns the bytes read after start. start is an earlier copy of r.s within the same vector.
func (r *reader) since(start cryptobyte.String) []byte {
	n := len(start) - len(r.s)
	return start[:n:n]
}

// finish returns the failure, if any, and refuses trailing bytes.
func (r *reader) finish() error {
	if len(r.s) > 0 {
		r.in = place{r.object, "6"}
		r.malformed("", strconv.Itoa(len(r.s))+" trailing bytes")
	}
	if r.err != nil {
		return r.err
	}
	return nil
}

// tooLarge returns the error for an object of n bytes, whose limit is limit.
func tooLarge(object string, n, limit int) error {
	return &ParseError{Object: object, Reason: sizes(n, limit), Kind: ErrTooLarge}
}

// sizes returns the text with the size of the object and the limit.
func sizes(n, limit int) string {
	return strconv.Itoa(n) + " bytes, and at most " + strconv.Itoa(limit) + " are taken"
}

// u16List is an encoded list of 16-bit code points.
type u16List []byte

// all yields the code points in order.
func (l u16List) all() iter.Seq[uint16] {
	return func(yield func(uint16) bool) {
		for ; len(l) >= 2; l = l[2:] {
			if !yield(uint16(l[0])<<8 | uint16(l[1])) {
				return
			}
		}
	}
}

// contains reports whether v is in the list.
func (l u16List) contains(v uint16) bool {
	for have := range l.all() {
		if have == v {
			return true
		}
	}
	return false
}
