package mlsclient

import (
	"crypto/rand"
	"encoding/binary"
)

// This file makes fake MLS objects for load. Their headers are correct (RFC 9420 §6.3, §12.4.3.1),
// so a server accepts them. Everything that a server cannot read is random bytes. Fake objects are
// cheap to make.

// Content types of a PrivateMessage.
const (
	contentApplication = 1
	contentCommit      = 3
)

// FakeMessage makes an application message whose ciphertext is size random bytes.
func FakeMessage(groupID []byte, epoch uint64, size int) []byte {
	return fakePrivateMessage(contentApplication, groupID, epoch, size)
}

// FakeCommit makes a commit whose ciphertext is size random bytes.
func FakeCommit(groupID []byte, epoch uint64, size int) []byte {
	return fakePrivateMessage(contentCommit, groupID, epoch, size)
}

func fakePrivateMessage(content byte, groupID []byte, epoch uint64, size int) []byte {
	b := []byte{0, 1, 0, 2}
	b = appendVector(b, groupID)
	b = binary.BigEndian.AppendUint64(b, epoch)
	b = append(b, content)
	b = appendVector(b, nil)
	b = appendVector(b, RandomBytes(28))
	return appendVector(b, RandomBytes(size))
}

// FakeWelcome makes a Welcome for the KeyPackages with these refs.
func FakeWelcome(suite Suite, refs ...[]byte) []byte {
	var secrets []byte
	for _, ref := range refs {
		secrets = appendVector(secrets, ref)
		secrets = appendVector(secrets, RandomBytes(32))
		secrets = appendVector(secrets, RandomBytes(64))
	}
	b := []byte{0, 1, 0, formatWelcome}
	b = binary.BigEndian.AppendUint16(b, uint16(suite))
	b = appendVector(b, secrets)
	return appendVector(b, RandomBytes(64))
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

// RandomBytes returns n random bytes.
func RandomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}
