package verifier

import (
	"context"
	"errors"
	"strings"
)

const (
	erasedPrefix = "did:erased:" // of the tombstones of erased accounts
	saltSize     = 16
)

// Sender is what stands for a sender in the leaves. If the account was erased, Salt is nil and DID
// is a tombstone's.
type Sender struct {
	DID  string
	Salt []byte
	Tag  Hash
}

// tagOf returns what stands for a sender in the leaves. The first time, it asks the server.
func (v *Verifier) tagOf(ctx context.Context, did string) (Hash, error) {
	if tag, ok := v.s.Tags[did]; ok {
		return tag, nil
	}
	if err := v.refresh(ctx, []string{did}); err != nil {
		if v.s.Lie == nil && !errors.As(err, new(*WentBack)) && !errors.Is(err, ErrReadAgain) {
			err = v.unanswered(err)
		}
		return Hash{}, err
	}
	if tag, ok := v.s.Tags[did]; ok {
		return tag, nil
	}
	return Hash{}, v.lie(nil, "the server shows entries of %s, and does not say what stands for it in the log", did)
}

// learnSender takes what stands for a sender. All salts have the same size, so that no tag can
// stand for two DIDs. An account that was erased and has returned has another salt.
func (v *Verifier) learnSender(one Sender) error {
	switch erased := strings.HasPrefix(one.DID, erasedPrefix); {
	case one.Salt == nil && !erased:
		return v.lie([]string{v.s.Head},
			"the server does not say why its tag stands for %s in the log: the salt is absent, and the account was not erased",
			one.DID)
	case one.Salt != nil && (len(one.Salt) != saltSize || TagOf(one.Salt, one.DID) != one.Tag):
		return v.lie([]string{v.s.Head}, "what the server says stands for %s in the log does not", one.DID)
	}
	if before, ok := v.s.Tags[one.DID]; ok && before != one.Tag && one.Salt == nil {
		return v.lie([]string{v.s.Head}, "the server has changed what stands for %s in the log", one.DID)
	}
	v.s.Tags[one.DID] = one.Tag
	return nil
}
