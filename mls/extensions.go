package mls

import (
	"iter"
	"slices"
)

// Extensions is an encoded list of extensions (RFC 9420 §13.4). The list has been checked: it is
// well-formed, and no type occurs twice.
type Extensions []byte

// All yields the extensions in order. The data aliases the list.
func (e Extensions) All() iter.Seq2[ExtensionType, []byte] {
	return func(yield func(ExtensionType, []byte) bool) {
		r := newReader("Extensions", e)
		for len(r.s) > 0 {
			t := ExtensionType(r.u16("extension_type"))
			data := r.opaque("extension_data")
			if r.err != nil || !yield(t, data) {
				return
			}
		}
	}
}

// Get returns the data of the extension of type t and whether there is one.
func (e Extensions) Get(t ExtensionType) ([]byte, bool) {
	for have, data := range e.All() {
		if have == t {
			return data, true
		}
	}
	return nil, false
}

// Has reports whether there is an extension of type t.
func (e Extensions) Has(t ExtensionType) bool {
	_, ok := e.Get(t)
	return ok
}

// extensions reads Extension field<V>. No type may appear twice (§13.4).
func (r *reader) extensions(field string) Extensions {
	var few [8]ExtensionType // nearly every list fits
	n := 0
	list := Extensions(r.vector(field, func(r *reader) {
		t := ExtensionType(r.u16("extension_type"))
		r.opaque("extension_data")
		if n < len(few) {
			if slices.Contains(few[:n], t) {
				r.twoOfOneType(field)
			}
			few[n] = t
		}
		n++
	}))
	if r.err == nil && n > len(few) {
		r.checkLongList(field, list)
	}
	return list
}

// checkLongList refuses a list with two extensions of one type. It takes linear time, and uses one
// bitmap for all lists that r reads.
func (r *reader) checkLongList(field string, list Extensions) {
	if r.seen == nil {
		r.seen = new(typeSet)
	}
	for t := range list.All() {
		if r.seen.has(t) {
			r.twoOfOneType(field)
			return
		}
		r.seen.add(t)
	}
	for t := range list.All() {
		r.seen.remove(t)
	}
}

func (r *reader) twoOfOneType(field string) {
	r.in.section = "13.4"
	r.malformed(field, "two extensions of one type")
}

// typeSet is a set of 16-bit code points.
type typeSet [1 << 16 / 64]uint64

func (s *typeSet) has(t ExtensionType) bool { return s[t/64]>>(t%64)&1 != 0 }
func (s *typeSet) add(t ExtensionType)      { s[t/64] |= 1 << (t % 64) }
func (s *typeSet) remove(t ExtensionType)   { s[t/64] &^= 1 << (t % 64) }
