package mls

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseHeader(t *testing.T) {
	t.Parallel()
	sig := vec(make([]byte, 64))
	proposals := testProposals(t)
	type expect struct {
		msg  []byte
		want Header
	}
	cases := map[string]expect{
		"private application": {privateMessage(7, ContentTypeApplication, 100),
			Header{WireFormat: 2, Epoch: 7, ContentType: 1}},
		"private commit": {privateMessage(MaxEpoch, ContentTypeCommit, 100),
			Header{WireFormat: 2, Epoch: MaxEpoch, ContentType: 3}},
		"private, empty ciphertext": {privateMessage(0, ContentTypeProposal, 0),
			Header{WireFormat: 2, ContentType: 2}},
		"public commit": {publicCommit(4, testCommit(t)),
			Header{WireFormat: 1, Epoch: 4, ContentType: 3, SenderType: 1, Sender: 3}},
		"public commit of nothing": {publicCommit(4, cat(vec(), u8(0))),
			Header{WireFormat: 1, Epoch: 4, ContentType: 3, SenderType: 1, Sender: 3}},
		"public commit, longest path": {publicCommit(4, cat(vec(), u8(1), leafOf(t, 3), vec(fill(32*2, cat(vec(), vec()))))),
			Header{WireFormat: 1, Epoch: 4, ContentType: 3, SenderType: 1, Sender: 3}},
		"public application": {framed(1, cat(content(4, member(8), 1, vec([]byte("hello"))), sig, testTag)),
			Header{WireFormat: 1, Epoch: 4, ContentType: 1, SenderType: 1, Sender: 8}},
		"external remove": {framed(1, cat(content(4, cat(u8(2), u32(5)), 2, proposals["remove"]), sig)),
			Header{WireFormat: 1, Epoch: 4, ContentType: 2, SenderType: 2, Sender: 5}},
		"new member's proposal": {framed(1, cat(content(4, u8(3), 2, proposals["add"]), sig)),
			Header{WireFormat: 1, Epoch: 4, ContentType: 2, SenderType: 3}},
		"new member's commit": {framed(1, cat(content(4, u8(4), 3, testCommit(t)), sig, testTag)),
			Header{WireFormat: 1, Epoch: 4, ContentType: 3, SenderType: 4}},
	}
	for name, p := range proposals {
		cases["proposal "+name] = expect{framed(1, cat(content(4, member(0), 2, p), sig, testTag)),
			Header{WireFormat: 1, Epoch: 4, ContentType: 2, SenderType: 1}}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.want.GroupID = []byte(testGroup)
			before := bytes.Clone(c.msg)
			got, err := ParseHeader(c.msg)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			// The content of an opaque proposal can be anything, also another message's beginning.
			if err := checkExact(codecs["Header"].parse, c.msg); err != nil && name != "proposal custom" {
				t.Error(err)
			}
			if !bytes.Equal(before, c.msg) {
				t.Error("the message was modified")
			}
		})
	}
}

func TestParseHeaderRefuses(t *testing.T) {
	t.Parallel()
	sig := vec(make([]byte, 64))
	proposals := testProposals(t)
	private := func(group []byte, epoch uint64, kind uint8) []byte {
		return framed(2, cat(vec(group), u64(epoch), u8(kind), vec(), vec(), vec()))
	}
	commit := func(body ...[]byte) []byte { return publicCommit(1, cat(body...)) }
	for name, c := range map[string]struct {
		msg   []byte
		want  error
		field string
	}{
		"empty":                {nil, ErrMalformed, "MLSMessage.version"},
		"version 2":            {u16(2, 2), ErrUnsupported, "MLSMessage.version"},
		"Welcome":              {testWelcome(make([]byte, 32)), ErrMalformed, "MLSMessage.wire_format"},
		"GREASE wire format":   {framed(0x0a0a, vec()), ErrMalformed, "MLSMessage.wire_format"},
		"epoch too high":       {private([]byte("g"), MaxEpoch+1, 1), ErrUnsupported, "PrivateMessage.epoch"},
		"group_id too long":    {private(make([]byte, 65), 1, 1), ErrUnsupported, "PrivateMessage.group_id"},
		"group_id empty":       {private(nil, 1, 1), ErrUnsupported, "PrivateMessage.group_id"},
		"content type 0":       {private([]byte("g"), 1, 0), ErrMalformed, "PrivateMessage.content_type"},
		"content type 4":       {private([]byte("g"), 1, 4), ErrMalformed, "PrivateMessage.content_type"},
		"message too large":    {make([]byte, MaxMessageSize+1), ErrTooLarge, ""},
		"private commit large": {privateMessage(1, 3, MaxCommitSize), ErrTooLarge, ""},
		"proposal too large":   {privateMessage(1, 2, MaxProposalSize), ErrTooLarge, ""},
		"public too large":     {append(publicCommit(1, testCommit(t)), make([]byte, MaxCommitSize)...), ErrTooLarge, ""},

		"sender type 0": {framed(1, content(1, cat(u8(0), u32(0)), 3, nil)), ErrMalformed,
			"FramedContent.sender.sender_type"},
		"sender type 5": {framed(1, content(1, cat(u8(5), u32(0)), 3, nil)), ErrMalformed,
			"FramedContent.sender.sender_type"},
		"external commit": {framed(1, content(1, cat(u8(2), u32(0)), 3, testCommit(t))), ErrMalformed,
			"FramedContent.content_type"},
		"new member message": {framed(1, content(1, u8(4), 1, vec())), ErrMalformed, "FramedContent.content_type"},
		"new member removes": {framed(1, cat(content(1, u8(3), 2, proposals["remove"]), sig)), ErrMalformed,
			"FramedContent.proposal"},
		"external update": {framed(1, cat(content(1, cat(u8(2), u32(0)), 2, proposals["update"]), sig)), ErrMalformed,
			"FramedContent.proposal"},
		"external init": {framed(1, cat(content(1, cat(u8(2), u32(0)), 2, proposals["external_init"]), sig)),
			ErrMalformed, "FramedContent.proposal"},
		"long form length":    {framed(2, cat([]byte{0x40, 1, 'g'}, u64(1))), ErrMalformed, "PrivateMessage.group_id"},
		"longer form length":  {framed(2, cat([]byte{0x80, 0, 0, 1, 'g'}, u64(1))), ErrMalformed, "PrivateMessage.group_id"},
		"length prefix 11":    {framed(2, []byte{0xc0, 0, 0, 0, 0, 0, 0, 1, 'g'}), ErrMalformed, "PrivateMessage.group_id"},
		"length beyond frame": {framed(2, []byte{0xbf, 0xff, 0xff, 0xff, 'g'}), ErrMalformed, "PrivateMessage.group_id"},

		"proposal type 0":     {commit(vec(u8(1), u16(0)), u8(0)), ErrMalformed, "Proposal.proposal_type"},
		"SelfRemove by value": {commit(vec(u8(1), u16(10)), u8(0)), ErrMalformed, "Commit.proposals"},
		"new member's custom": {framed(1, cat(content(1, u8(3), 2, proposals["custom"]), sig)), ErrMalformed,
			"FramedContent.proposal"},
		"external SelfRemove": {framed(1, cat(content(1, cat(u8(2), u32(0)), 2, proposals["self_remove"]), sig)),
			ErrMalformed, "FramedContent.proposal"},
		"custom, no signature": {framed(1, cat(content(1, member(0), 2, u16(0xf001)), testTag)), ErrMalformed,
			"FramedContentAuthData.signature"},
		"custom, no tag": {framed(1, cat(content(1, member(0), 2, u16(0xf001)), sig)), ErrMalformed,
			"FramedContentAuthData.signature"},
		"custom, tag of no MAC": {framed(1, cat(content(1, member(0), 2, u16(0xf001)), sig, vec(make([]byte, 33)))),
			ErrMalformed, "FramedContentAuthData.signature"},
		"reinit of version 0": {commit(vec(u8(1), u16(5), vec([]byte("next")), u16(0, 1), vec()), u8(0)), ErrMalformed,
			"ReInit.version"},
		"proposal or what": {commit(vec(u8(3)), u8(0)), ErrMalformed, "Commit.proposals.type"},
		"proposal over the end": {cat(commit(vec(u8(1), u16(3), u16(0)), u8(0)), u32(0)), ErrMalformed,
			"Proposal.remove.removed"},
		"path presence 2": {commit(vec(), u8(2)), ErrMalformed, "Commit.path"},
		"path of 33 nodes": {commit(vec(), u8(1), leafOf(t, 3), vec(fill(33*2, cat(vec(), vec())))), ErrMalformed,
			"UpdatePath.nodes"},
		"psk type 3":  {commit(vec(u8(1), u16(4), u8(3)), u8(0)), ErrMalformed, "PreSharedKeyID.psktype"},
		"psk usage 4": {commit(vec(u8(1), u16(4), u8(2), u8(4)), u8(0)), ErrMalformed, "PreSharedKeyID.usage"},
		"extensions twice": {commit(vec(u8(1), u16(7), vec(ext(3), ext(3))), u8(0)), ErrMalformed,
			"Proposal.group_context_extensions.extensions"},
		"confirmation tag gone": {framed(1, cat(content(1, member(0), 3, cat(vec(), u8(0))), sig, testTag)), ErrMalformed,
			"PublicMessage.membership_tag"},
		"membership tag on join": {framed(1, cat(content(1, u8(4), 3, cat(vec(), u8(0))), sig, testTag, testTag)),
			ErrMalformed, "PublicMessage"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, err := ParseHeader(c.msg)
			wantError(t, err, c.want, c.field)
			if diff := cmp.Diff(Header{}, h); diff != "" {
				t.Errorf("not zero on error: %s", diff)
			}
		})
	}
}

func TestParseHeaderLargestMessage(t *testing.T) {
	t.Parallel()
	msg := privateMessage(1, ContentTypeApplication, MaxMessageSize-100)
	if _, err := ParseHeader(msg); err != nil {
		t.Error(err)
	}
}

// TestPrivateHeaderDoesNotCopy checks that parsing a header allocates the same for messages of any
// size.
func TestPrivateHeaderDoesNotCopy(t *testing.T) {
	msg := privateMessage(1, ContentTypeApplication, 1<<20)
	allocs := testing.AllocsPerRun(100, func() {
		if h, err := ParseHeader(msg); err != nil || &h.GroupID[0] != &msg[5] {
			t.Fatal("group_id was copied", err)
		}
	})
	if allocs > 1 {
		t.Errorf("%v allocations, want at most 1", allocs)
	}
}
