package mlstest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"slices"
	"testing"

	"mlsd/mls"
)

// PublicMessages with handshakes for a group of GroupInfo. Their signatures are valid. Their tags
// are zeros, because tags need secrets.

// Remove returns a proposal to remove a leaf, without its ProposalOrRef tag.
func Remove(leaf uint32) []byte { return encode(mls.ProposalRemove, leaf) }

// ByValue and ByReference return an entry of a commit's list of proposals.
func ByValue(proposal []byte) []byte { return encode(uint8(1), proposal) }
func ByReference(ref []byte) []byte  { return encode(uint8(2), opaque(ref)) }

// PublicProposal returns a member's proposal in the group of a GroupInfo, and its ProposalRef.
func (d *Device) PublicProposal(t testing.TB, groupInfo []byte, leaf uint32, proposal []byte) (message, ref []byte) {
	t.Helper()
	signed := d.signedAs(t, groupInfo, mls.SenderTypeMember, leaf, mls.ContentTypeProposal, proposal)
	sum := sha256.Sum256(encode(opaque([]byte("MLS 1.0 Proposal Reference")),
		opaque(encode(mls.WireFormatPublicMessage, signed))))
	return publicMessage(signed, 1), sum[:]
}

// PublicCommit returns a member's commit of proposals in the group of a GroupInfo. If path is true,
// the commit has a path with only the member's new leaf. Such a path is valid if the group has no
// other member to encrypt to.
func (d *Device) PublicCommit(t testing.TB, groupInfo []byte, leaf uint32, path bool, proposals ...[]byte) []byte {
	t.Helper()
	commit := opaque(slices.Concat(proposals...))
	if path {
		noParentHash := opaque(nil) // every parent is blank
		own := d.leafIn(t, leafFromCommit, noParentHash, parse(t, groupInfo).GroupID, leaf)
		commit = encode(commit, uint8(1), own, opaque(nil))
	} else {
		commit = encode(commit, uint8(0))
	}
	return publicMessage(d.signedAs(t, groupInfo, mls.SenderTypeMember, leaf, mls.ContentTypeCommit, commit), 2)
}

// signedAs returns a FramedContent of a kind of sender, and its signature. index is the leaf of a
// member, or the index of an external sender.
func (d *Device) signedAs(
	t testing.TB, groupInfo []byte, sender mls.SenderType, index uint32, kind mls.ContentType, body []byte,
) []byte {
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
	content := encode(opaque(info.GroupID), info.Epoch, sender)
	if sender == mls.SenderTypeMember || sender == mls.SenderTypeExternal {
		content = encode(content, index)
	}
	content = encode(content, opaque(nil), kind, body)
	tbs := encode(mls.VersionMLS10, mls.WireFormatPublicMessage, content)
	if sender == mls.SenderTypeMember || sender == mls.SenderTypeNewMemberCommit {
		tbs = encode(tbs, group.Context())
	}
	return encode(content, opaque(d.sign("FramedContentTBS", tbs)))
}

// publicMessage returns a PublicMessage of the signed part and a number of tags.
func publicMessage(signed []byte, tags int) []byte {
	return message(mls.WireFormatPublicMessage, signed, slices.Repeat(opaque(make([]byte, 32)), tags))
}

func parse(t testing.TB, groupInfo []byte) mls.GroupInfo {
	t.Helper()
	info, err := mls.ParseGroupInfo(groupInfo)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// SelfRemove returns a SelfRemove proposal (draft-ietf-mls-extensions).
func SelfRemove() []byte { return encode(mls.ProposalSelfRemove) }

// customProposal is a proposal type that the RFC does not define, and that the devices support.
const customProposal = uint16(0xf001)

// Custom returns a proposal of type customProposal.
func Custom(content string) []byte { return encode(customProposal, []byte(content)) }

// ReInit returns a proposal to replace the group by another one.
func ReInit(group []byte) []byte {
	return encode(mls.ProposalReInit, opaque(group), mls.VersionMLS10, Suite, opaque(nil))
}

// Add returns a proposal to add the device of a framed KeyPackage.
func Add(keyPackage []byte) []byte { return encode(mls.ProposalAdd, keyPackage[4:]) }

// PSK returns a proposal to bring in an external PSK.
func PSK(id string) []byte {
	return encode(mls.ProposalPSK, uint8(1), opaque([]byte(id)), opaque(make([]byte, 32)))
}

// ContextExtensions returns a proposal to replace the extensions of the GroupContext.
func ContextExtensions(extensions []byte) []byte {
	return encode(mls.ProposalGroupContextExtensions, opaque(extensions))
}

// ExternalSenders returns a GroupContext extension that lists the devices as external senders.
func ExternalSenders(devices ...*Device) []byte {
	var senders []byte
	for _, d := range devices {
		key := d.key.Public().(ed25519.PublicKey)
		senders = encode(senders, opaque(key), mls.CredentialTypeBasic, opaque([]byte(d.DID)))
	}
	return encode(mls.ExtensionExternalSenders, opaque(opaque(senders)))
}

// ExternalProposal returns a proposal of the external sender that has the index in the group's
// list.
func (d *Device) ExternalProposal(t testing.TB, groupInfo []byte, index uint32, proposal []byte) []byte {
	t.Helper()
	return publicMessage(d.signedAs(t, groupInfo, mls.SenderTypeExternal, index, mls.ContentTypeProposal, proposal), 0)
}

// NewMemberProposal returns a proposal of a device to add itself.
func (d *Device) NewMemberProposal(t testing.TB, groupInfo []byte) []byte {
	t.Helper()
	keyPackage, _ := d.KeyPackage(t)
	return publicMessage(d.signedAs(t, groupInfo, mls.SenderTypeNewMemberProposal, 0, mls.ContentTypeProposal,
		Add(keyPackage)), 0)
}

// ExternalCommit returns an external commit to the group of a GroupInfo with two members. first is
// the first member. The proposals must remove the second member, whose place the device takes.
func (d *Device) ExternalCommit(t testing.TB, groupInfo []byte, first *Device, proposals ...[]byte) []byte {
	t.Helper()
	info := parse(t, groupInfo)
	init := encode(mls.ProposalExternalInit, opaque(hpkeKey(t, Suite)))
	rootKey := opaque(hpkeKey(t, Suite))
	sibling := sha256.Sum256(encode([]byte{1, 0, 0, 0, 0, 1}, first.place))
	parentHash := sha256.Sum256(encode(rootKey, opaque(nil), opaque(sibling[:])))
	leaf := d.leafIn(t, leafFromCommit, opaque(parentHash[:]), info.GroupID, 1)
	secrets := opaque(encode(opaque(hpkeKey(t, Suite)), opaque(make([]byte, 48))))
	list := opaque(encode(ByValue(init), slices.Concat(proposals...)))
	commit := encode(list, uint8(1), leaf, opaque(encode(rootKey, secrets)))
	return publicMessage(d.signedAs(t, groupInfo, mls.SenderTypeNewMemberCommit, 0, mls.ContentTypeCommit, commit), 1)
}
