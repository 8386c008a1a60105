package verifier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// keyLine begins the line of a key in what members send each other.
const keyLine = "key "

// Message returns the text to send to other members inside an encrypted message: the keys that the
// device has for the service, the tombstones that it was shown, and the newest checked head. The
// members' verifiers take the text with Head.
func (v *Verifier) Message() string {
	var b strings.Builder
	for _, key := range v.s.Keys {
		b.WriteString(keyLine + key + "\n")
	}
	return b.String() + v.tombstones() + v.s.Head
}

// parts takes a Message apart.
func parts(message string) (keys []string, tombstones []Sender, head string) {
	for {
		line, rest, ok := strings.Cut(message, "\n")
		key, isKey := strings.CutPrefix(line, keyLine)
		text, isSender := strings.CutPrefix(line, senderLine)
		if !ok || !isKey && !isSender {
			return keys, tombstones, message
		}
		if message = rest; isKey {
			keys = append(keys, key)
		} else if s, ok := parseTombstone(text); ok && len(tombstones) < maxTombstones {
			tombstones = append(tombstones, s)
		}
	}
}

// Head checks the Message that a member has sent inside an encrypted message. Its head can be older
// or newer than what was shown. Errors: *Lie, *WentBack, *OtherKey, *OtherSender, ErrReadAgain,
// ErrNotSigned, and errors of the source.
func (v *Verifier) Head(ctx context.Context, message, from string) error {
	if err := v.lied(); err != nil {
		return err
	}
	if len(v.s.Keys) == 0 {
		if err := v.refresh(ctx, nil); err != nil {
			return err
		}
	}
	keys, tombstones, text := parts(message)
	h, err := Open(text, keyList(v.s.Keys))
	if err != nil && v.otherKey(text) != 0 { // the service could have another key now
		if err := v.refresh(ctx, nil); err != nil {
			return err
		}
		h, err = Open(text, keyList(v.s.Keys))
	}
	if err != nil {
		return v.unknownKey(message, text, keys, from, err)
	}
	if h.Service != v.s.Service || h.ConvoID != v.s.ConvoID {
		return fmt.Errorf("%w: it is of another log", ErrNotSigned)
	}
	var back *WentBack // the member's head is compared nevertheless
	if h.Generation > v.s.Generation || h.Size > v.s.HeadSize {
		if err := v.refresh(ctx, nil); err != nil && !errors.As(err, &back) { // asks the server for its newest head
			return err
		}
	}
	switch {
	case h.Generation > v.s.Generation:
		return v.lie([]string{v.s.Head, text}, "%s has a head of generation %d, and the server says it is in generation %d",
			from, h.Generation, v.s.Generation)
	case h.Generation < v.s.Generation:
		err = v.earlier(ctx, text, h, from)
	case h.Size > v.s.HeadSize:
		return v.lie([]string{v.s.Head, text}, "%s has a head of %d entries, and the server says that there are %d", from,
			h.Size, v.s.HeadSize)
	default:
		if err = v.compare(ctx, text, h, from); err == nil {
			err = v.remember(ctx, text, h, from)
		}
		if err == nil {
			err = v.compareSenders(ctx, tombstones, from)
		}
	}
	if err == nil && back != nil {
		return back
	}
	return err
}

// otherKey returns the hash of an unknown key with which, by its own words, a text is signed. It
// returns 0 if there is no such key.
func (v *Verifier) otherKey(text string) uint32 {
	if len(text) > MaxNote {
		return 0
	}
	var unknown *note.UnverifiedNoteError
	if _, err := note.Open([]byte(text), keyList(v.s.Keys)); !errors.As(err, &unknown) {
		return 0
	}
	for _, signature := range unknown.Note.UnverifiedSigs {
		if signature.Name == v.s.Service {
			return signature.Hash
		}
	}
	return 0
}

// unknownKey returns the finding that a member's head is signed with a key that the device does not
// know.
func (v *Verifier) unknownKey(message, text string, keys []string, from string, why error) error {
	hash := v.otherKey(text)
	if hash == 0 {
		return fmt.Errorf("%w: %w", ErrNotSigned, why)
	}
	_, err := Open(text, keyList(keys))
	o := OtherKey{Member: from, KeyHash: hash, Signed: err == nil, Evidence: []string{message, v.s.Head}}
	if !slices.ContainsFunc(v.s.OtherKeys, func(b OtherKey) bool { return b.Member == from && b.KeyHash == hash }) {
		v.s.OtherKeys = append(v.s.OtherKeys, o)
		if extra := len(v.s.OtherKeys) - maxBacks; extra > 0 {
			v.s.OtherKeys = slices.Delete(v.s.OtherKeys, 0, extra)
		}
	}
	return &o
}

// earlier compares a member's head of an earlier generation. If nothing was lost when that
// generation ended, the present log begins with the head. Each head is reported once.
func (v *Verifier) earlier(ctx context.Context, text string, h *Head, from string) error {
	newest := v.newest()
	if newest == nil || slices.ContainsFunc(v.s.Backs,
		func(b WentBack) bool { return b.Member == from && b.Evidence[0] == text }) {
		return nil
	}
	ok, err := v.isPrefix(ctx, newest, h.Size, h.Root)
	if err != nil || ok {
		return err
	}
	if _, _, err := v.again(ctx); err != nil {
		return err
	}
	back := &WentBack{From: h.Size, To: newest.Size, Generation: newest.Generation, Evidence: []string{text, v.s.Head},
		Member: from}
	v.addBack(*back)
	return back
}

// compare checks that the newest head continues a member's head.
func (v *Verifier) compare(ctx context.Context, text string, h *Head, from string) error {
	for _, w := range v.s.Waiting {
		if w.Size == h.Size && w.Root != h.Root {
			return v.twoHeads(w, text, h, from)
		}
	}
	if root, ok := v.rootAt(h.Size); ok && v.s.Started && root == h.Root {
		return nil
	}
	newest := v.newest()
	if newest == nil {
		return nil // no head from the server was checked yet
	}
	ok, err := v.isPrefix(ctx, newest, h.Size, h.Root)
	if err != nil || ok {
		return err
	}
	return v.accuse(ctx, []string{v.s.Head, text},
		"there are two logs: the server cannot prove that my head of %d entries continues the head of %d that %s has",
		newest.Size, h.Size, from)
}
