package mlstest

import (
	"crypto/sha256"
	"slices"
	"testing"

	"golang.org/x/crypto/cryptobyte"

	"mlsd/mls"
)

// PublicMessages with handshakes for a group of GroupInfo. Their signatures are valid. Their tags
// are zeros, because those need secrets.

// Remove returns a proposal to remove a leaf, without its ProposalOrRef tag.
func Remove(leaf uint32) []byte {
	return encode(func(b *cryptobyte.Builder) {
		b.AddUint16(uint16(mls.ProposalRemove))
		b.AddUint32(leaf)
	})
}

// ByValue and ByReference return an entry of a commit's list of proposals.
func ByValue(proposal []byte) []byte { return append([]byte{1}, proposal...) }
func ByReference(ref []byte) []byte  { return append([]byte{2}, opaque(ref)...) }

// PublicProposal returns a member's proposal in the group of a GroupInfo, and its ProposalRef.
func (d *Device) PublicProposal(t testing.TB, groupInfo []byte, leaf uint32, proposal []byte) (message, ref []byte) {
	t.Helper()
	signed := d.signed(t, groupInfo, leaf, mls.ContentTypeProposal, proposal)
	sum := sha256.Sum256(slices.Concat(opaque([]byte("MLS 1.0 Proposal Reference")), opaque(slices.Concat(u16s(uint16(mls.WireFormatPublicMessage)), signed))))
	return publicMessage(signed, 1), sum[:]
}

// PublicCommit returns a member's commit of proposals in the group of a GroupInfo. path adds a path
// that has only the member's new leaf. That is valid if the group has no other member to encrypt
// to.
func (d *Device) PublicCommit(t testing.TB, groupInfo []byte, leaf uint32, path bool, proposals ...[]byte) []byte {
	t.Helper()
	commit := opaque(slices.Concat(proposals...))
	if path {
		commit = slices.Concat(commit, []byte{1}, d.leafIn(t, leafFromCommit, parse(t, groupInfo).GroupID, leaf), []byte{0})
	} else {
		commit = append(commit, 0)
	}
	return publicMessage(d.signed(t, groupInfo, leaf, mls.ContentTypeCommit, commit), 2)
}

// signed returns a FramedContent and its signature.
func (d *Device) signed(t testing.TB, groupInfo []byte, leaf uint32, kind mls.ContentType, body []byte) []byte {
	t.Helper()
	info := parse(t, groupInfo)
	tree, err := info.Tree()
	if err != nil {
		t.Fatal(err)
	}
	group, err := info.Verify(tree)
	if err != nil {
		t.Fatal(err)
	}
	content := encode(func(b *cryptobyte.Builder) {
		vector(b, info.GroupID)
		b.AddUint64(info.Epoch)
		b.AddUint8(uint8(mls.SenderTypeMember))
		b.AddUint32(leaf)
		vector(b, nil)
		b.AddUint8(uint8(kind))
		b.AddBytes(body)
	})
	tbs := slices.Concat(u16s(uint16(mls.VersionMLS10), uint16(mls.WireFormatPublicMessage)), content, group.Context())
	return slices.Concat(content, opaque(d.sign("FramedContentTBS", tbs)))
}

// publicMessage returns a PublicMessage of the signed part and a number of tags.
func publicMessage(signed []byte, tags int) []byte {
	return message(mls.WireFormatPublicMessage, slices.Concat(signed, slices.Repeat(opaque(make([]byte, 32)), tags)))
}

func parse(t testing.TB, groupInfo []byte) mls.GroupInfo {
	t.Helper()
	info, err := mls.ParseGroupInfo(groupInfo)
	if err != nil {
		t.Fatal(err)
	}
	return info
}
