package verifier

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// senderLine begins the line of a tombstone in a Message. Its tag and its DID follow.
	senderLine = "sender "
	// maxTombstones bounds the tombstones of a Message.
	maxTombstones = 64
)

// OtherSender says that a member was shown another sender of entries than the device was. A salt
// binds a tag to its DID, but a tombstone has no salt, so the heads of both fit. Either the member
// has made up the sender, or the server shows a tag to one of them as an account's and to the other
// as a tombstone's.
type OtherSender struct {
	Member       string
	Mine, Theirs string // DIDs, at least one of them of a tombstone
	Tag          Hash
}

func (o *OtherSender) Error() string {
	return fmt.Sprintf("%s was shown entries as by %s that I was shown as by %s, or has made it up", o.Member, o.Theirs,
		o.Mine)
}

// tombstones returns the lines of a Message that say which tags stand for tombstones.
func (v *Verifier) tombstones() string {
	var b strings.Builder
	n := 0
	for _, did := range slices.Sorted(maps.Keys(v.s.Tags)) {
		if tag := v.s.Tags[did]; strings.HasPrefix(did, erasedPrefix) && n < maxTombstones {
			n++
			b.WriteString(senderLine + hex.EncodeToString(tag[:]) + " " + did + "\n")
		}
	}
	return b.String()
}

// parseTombstone reads a line behind senderLine.
func parseTombstone(line string) (s Sender, ok bool) {
	text, did, found := strings.Cut(line, " ")
	tag, err := hex.DecodeString(text)
	if !found || err != nil || len(tag) != len(s.Tag) || !strings.HasPrefix(did, erasedPrefix) {
		return Sender{}, false
	}
	return Sender{DID: did, Tag: Hash(tag)}, true
}

// compareSenders compares the tombstones that a member was shown with what the device was shown. If
// the device was shown an account, that account may have been erased meanwhile: then the server no
// longer has its salt.
func (v *Verifier) compareSenders(ctx context.Context, theirs []Sender, from string) error {
	for _, their := range theirs {
		for _, mine := range slices.Sorted(maps.Keys(v.s.Tags)) {
			if mine == their.DID || v.s.Tags[mine] != their.Tag {
				continue
			}
			if !strings.HasPrefix(mine, erasedPrefix) {
				delete(v.s.Tags, mine)
				if err := v.refresh(ctx, []string{mine}); err != nil {
					return err
				}
				if v.s.Tags[mine] != their.Tag {
					continue
				}
			}
			o := OtherSender{Member: from, Mine: mine, Theirs: their.DID, Tag: their.Tag}
			if !slices.Contains(v.s.OtherSenders, o) && len(v.s.OtherSenders) < maxBacks {
				v.s.OtherSenders = append(v.s.OtherSenders, o)
			}
			return &o
		}
	}
	return nil
}
