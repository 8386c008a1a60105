package mls

import (
	"fmt"
	"strconv"
	"testing"
)

// object is one object of the working group's vectors.
type object struct {
	name string
	codec
	data []byte
}

// objectsOf returns the objects of one file of vectors, as clients send them to a server.
func objectsOf(t *testing.T, file string) (all []object) {
	t.Helper()
	add := func(at int, name string, c codec, data []byte) {
		all = append(all, object{strconv.Itoa(at) + " " + name, c, data})
	}
	switch file {
	case "messages.json":
		for i, v := range loadVectors[messagesVector](t, file) {
			for _, o := range v.objects() {
				add(i, o.name, o.codec, o.data)
			}
		}
	case "tree-validation.json":
		for i, v := range loadVectors[treeVector](t, file) {
			add(i, "tree", treeCodec(v.CipherSuite), v.Tree)
		}
	default:
		for i, v := range loadVectors[joinVector](t, file) {
			add(i, "key_package", codecs["KeyPackage"], v.KeyPackage)
			add(i, "welcome", codecs["Welcome"], v.Welcome)
			if v.CipherSuite.Supported() {
				add(i, "GroupInfo in the Welcome", codecs["GroupInfo"], v.decryptGroupInfo(t))
			}
			if v.RatchetTree != nil {
				add(i, "ratchet_tree", treeCodec(v.CipherSuite), v.RatchetTree)
			}
			for _, e := range v.Epochs {
				add(i, "commit", codecs["Commit"], e.Commit)
				for _, p := range e.Proposals {
					add(i, "proposal", codecs["Proposal"], p)
				}
			}
		}
	}
	return all
}

// objects returns the objects of a vector of messages.json, except group_secrets, which no server
// can decrypt. It puts proposals and commits without a frame into PublicMessages.
func (v *messagesVector) objects() []object {
	all := []object{
		{"mls_welcome", codecs["Welcome"], v.Welcome},
		{"mls_group_info", codecs["GroupInfo"], v.GroupInfo},
		{"mls_group_info bare", codecs["GroupInfo"], v.GroupInfo[4:]},
		{"mls_key_package", codecs["KeyPackage"], v.KeyPackage},
		{"mls_key_package bare", codecs["KeyPackage"], v.KeyPackage[4:]},
		{"ratchet_tree", codecs["Tree"], v.RatchetTree},
		{"commit", codecs["Commit"], publicCommit(1, v.Commit)},
		{"public_message_commit", codecs["Commit"], v.PublicCommit},
		{"public_message_commit, header", codecs["Header"], v.PublicCommit},
		{"public_message_proposal", codecs["Proposal"], v.PublicProposal},
		{"public_message_proposal, header", codecs["Header"], v.PublicProposal},
		{"public_message_application, header", codecs["Header"], v.PublicApplication},
		{"private_message, header", codecs["Header"], v.PrivateMessageAny},
	}
	for i, body := range [][]byte{
		v.AddProposal, v.UpdateProposal, v.RemoveProposal, v.PSKProposal, v.ReInitProposal, v.ExternalInit,
		v.ContextExtensions,
	} {
		name := "proposal of type " + strconv.Itoa(i+1)
		proposal := cat(u16(uint16(i+1)), body)
		alone := cat(content(1, member(3), ContentTypeProposal, proposal), testTag, testTag)
		all = append(all,
			object{name, codecs["Proposal"], framed(1, alone)},
			object{name + " in a commit", codecs["Commit"], publicCommit(1, cat(vec(byValue(proposal)), u8(0)))})
	}
	return all
}

var vectorFiles = []string{
	"messages.json", "tree-validation.json",
	"welcome.json", "passive-client-welcome.json", "passive-client-handling-commit.json",
}

// TestVectorsEncode parses every object of the vectors, and encodes it again from the parsed
// fields.
func TestVectorsEncode(t *testing.T) {
	t.Parallel()
	for _, file := range vectorFiles {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			all := objectsOf(t, file)
			for _, o := range all {
				if err := o.checkSame(o.data); err != nil {
					t.Errorf("%s: %v", o.name, err)
				}
			}
			t.Logf("%d objects", len(all))
		})
	}
}

// TestVectorsExact cuts every object of the vectors at one offset in seven, appends bytes to it, and
// inserts a byte at one offset in seven. Over all vectors of one kind that is every offset. In an
// object of more than 4 KiB it cuts and inserts at one offset in 707.
func TestVectorsExact(t *testing.T) {
	t.Parallel()
	for _, file := range vectorFiles {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			inserted, another := 0, 0
			for i, o := range objectsOf(t, file) {
				if raceEnabled && i%5 != 0 {
					continue
				}
				step := 7
				if len(o.data) > 4<<10 {
					step = 707
				}
				first := i % 7 * step / 7
				if err := checkExactAt(o.parse, o.data, first, step); err != nil {
					t.Errorf("%s: %v", o.name, err)
				}
				for at := first; at < len(o.data); at += step {
					ok, err := o.acceptsInsertion(o.data, at)
					if err != nil {
						t.Errorf("%s: %v", o.name, err)
					}
					inserted++
					if ok {
						another++
					}
				}
			}
			t.Logf("%d insertions, %d of which make another object", inserted, another)
			if another*100 > inserted {
				t.Error("more than one insertion in a hundred is accepted")
			}
		})
	}
}

// acceptsInsertion inserts a byte into data and reports whether the result parses. It can parse:
// the byte can make one field longer, and the bytes after it can then form the next fields. The
// result is then another valid object, whose encoding has the inserted byte too.
func (c codec) acceptsInsertion(data []byte, at int) (bool, error) {
	longer := cat(data[:at], u8(uint8(at)), data[at:])
	if c.parse(longer) != nil {
		return false, nil
	}
	if err := c.checkSame(longer); err != nil {
		return true, fmt.Errorf("with a byte put in at %d: %w", at, err)
	}
	return true, nil
}
