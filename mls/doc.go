// Package mls reads the wire objects of RFC 9420 (Messaging Layer Security) that a delivery service
// can read without any secret: the clear header of a message or commit, the recipients of a
// Welcome, everything in a KeyPackage, a group's tree and members, and what a commit that is not
// encrypted changes in them. rules.go has what it accepts.
//
// It holds no state, uses neither network nor database, and imports only internal/errs and
// libraries. It is written from the RFC, on golang.org/x/crypto/cryptobyte, so the server's verdict
// does not depend on the library that made the object.
package mls
