package clientsim

import (
	"crypto/rand"
	"encoding/binary"
)

// This file makes MLS objects that are hollow: what a server can read of them is as it must be (RFC 9420 §6.3, §12.4.3.1), and what it
// cannot read is noise. They cost nothing, where thousands a second are wanted.

// Content types of a PrivateMessage.
const (
	hollowMessage = 1
	hollowCommit  = 3
)

// HollowMessage makes an application message with so many bytes of noise.
func HollowMessage(groupID []byte, epoch uint64, size int) []byte {
	return hollowPrivate(hollowMessage, groupID, epoch, size)
}

// HollowCommit makes a commit with so many bytes of noise.
func HollowCommit(groupID []byte, epoch uint64, size int) []byte {
	return hollowPrivate(hollowCommit, groupID, epoch, size)
}

// HollowWelcome makes a Welcome for the KeyPackages with these refs.
func HollowWelcome(suite Suite, refs ...[]byte) []byte { return hollowWelcome(suite, refs...) }

// hollowPrivate makes a PrivateMessage with so many bytes of noise.
func hollowPrivate(content byte, groupID []byte, epoch uint64, size int) []byte {
	b := []byte{0, 1, 0, 2}
	b = appendVector(b, groupID)
	b = binary.BigEndian.AppendUint64(b, epoch)
	b = append(b, content)
	b = appendVector(b, nil)
	b = appendVector(b, noise(28))
	return appendVector(b, noise(size))
}

// hollowWelcome makes a Welcome for the KeyPackages with these refs.
func hollowWelcome(suite Suite, refs ...[]byte) []byte {
	var secrets []byte
	for _, ref := range refs {
		secrets = appendVector(secrets, ref)
		secrets = appendVector(secrets, noise(32))
		secrets = appendVector(secrets, noise(64))
	}
	b := []byte{0, 1, 0, formatWelcome}
	b = binary.BigEndian.AppendUint16(b, uint16(suite))
	b = appendVector(b, secrets)
	return appendVector(b, noise(64))
}

// appendVector appends a vector with its length in front (RFC 9420 §2.1.2).
func appendVector(b, content []byte) []byte {
	switch n := len(content); {
	case n < 1<<6:
		b = append(b, byte(n))
	case n < 1<<14:
		b = binary.BigEndian.AppendUint16(b, uint16(n)|1<<14)
	default:
		b = binary.BigEndian.AppendUint32(b, uint32(n)|2<<30)
	}
	return append(b, content...)
}

func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}
