package mls

import (
	"errors"
	"strings"
)

// The reasons to refuse an object. A [*ParseError] wraps exactly one.
var (
	// ErrMalformed: the bytes are not a well-formed object of the wanted kind, or the object
	// contradicts itself.
	ErrMalformed = errors.New("malformed")
	// ErrUnsupported: the object is well-formed as far as it was parsed. But this package does not
	// support its version, cipher suite, credential, proposal or range of values.
	ErrUnsupported = errors.New("unsupported")
	// ErrTooLarge: the object has more bytes than its kind may have.
	ErrTooLarge = errors.New("too large")
	// ErrExpired: the given time is outside the lifetime.
	ErrExpired = errors.New("outside its lifetime")
	// ErrLifetimeTooLong: the whole lifetime is longer than MaxLifetime.
	ErrLifetimeTooLong = errors.New("lifetime too long")
	// ErrBadSignature: a signature does not verify. RFC 9420 §10 calls such a KeyPackage malformed.
	// This error is separate so that callers can count such KeyPackages.
	ErrBadSignature = errors.New("signature does not verify")
)

// ParseError says why an object was refused. Its text contains only names of the RFC and small
// numbers, and no content. It is safe to show the text to a client.
type ParseError struct {
	Object  string // outermost object: "KeyPackage", "Welcome", …
	Field   string // "LeafNode.signature_key"; may be empty
	Section string // section of RFC 9420: "7.2"; empty for limits of this service
	Reason  string // what is wrong with the field
	Kind    error  // one of the sentinels of this package
}

// Error returns the text, for example
// "KeyPackage malformed: LeafNode.signature_key: cut short (RFC 9420 §7.2)".
func (e *ParseError) Error() string {
	var b strings.Builder
	b.WriteString(e.Object)
	b.WriteByte(' ')
	b.WriteString(e.Kind.Error())
	for _, s := range []string{e.Field, e.Reason} {
		if s != "" {
			b.WriteString(": ")
			b.WriteString(s)
		}
	}
	if e.Section != "" {
		b.WriteString(" (RFC 9420 §")
		b.WriteString(e.Section)
		b.WriteByte(')')
	}
	return b.String()
}

// Unwrap returns the sentinel, for errors.Is.
func (e *ParseError) Unwrap() error { return e.Kind }

// checkSize refuses msg if it has more than limit bytes.
func checkSize(object string, msg []byte, limit int) error {
	if len(msg) > limit {
		return tooLarge(object, len(msg), limit)
	}
	return nil
}
