package mls

import (
	"bytes"
	"fmt"
	"slices"
)

// codec parses an object and encodes it again from the parsed fields. It does not use Raw, tbs,
// content or another part of the input with several fields. So if a parser drops a field or puts it
// in the wrong place, the encoding differs.
type codec func(data []byte) ([]byte, error)

// codecs has a codec for each kind of object that clients send to a server.
var codecs = map[string]codec{
	"Header":     codecOf(ParseHeader, (*encoder).message),
	"Commit":     codecOf(ParseCommit, (*encoder).commit),
	"Proposal":   codecOf(ParseProposal, (*encoder).proposalMessage),
	"Welcome":    codecOf(ParseWelcome, (*encoder).welcome),
	"KeyPackage": codecOf(ParseKeyPackage, (*encoder).framedKeyPackage),
	"GroupInfo":  codecOf(ParseGroupInfo, (*encoder).framedGroupInfo),
	"Tree":       treeCodec(SuiteX25519AES128),
}

func treeCodec(suite CipherSuite) codec {
	return codecOf(func(b []byte) (*Tree, error) { return ParseTree(suite, b) }, (*encoder).tree)
}

func codecOf[T any](parse func([]byte) (T, error), encode func(*encoder, T)) codec {
	return func(data []byte) ([]byte, error) {
		v, err := parse(data)
		if err != nil {
			return nil, err
		}
		e := encoder{src: data}
		encode(&e, v)
		return e.out, nil
	}
}

// parse runs the codec's parser and returns its error only.
func (c codec) parse(data []byte) error { _, err := c(data); return err }

// checkSame checks that data parses, and that its encoding equals data.
func (c codec) checkSame(data []byte) error {
	again, err := c(data)
	if err == nil && !bytes.Equal(again, data) {
		err = fmt.Errorf("encoded again as %x, was %x", again, data)
	}
	return err
}

// encoder encodes an object and has the bytes that it was parsed from. A parser does not store some
// fields: certificates, the parts of a ReInit, the id of a PSK, HPKE ciphertexts, and content that
// is encrypted to members. The encoder reads these from the input, one by one, at the place that
// the encoding has reached.
type encoder struct {
	out []byte
	src []byte // what is left of the original
}

func (e *encoder) put(parts ...[]byte) {
	before := len(e.out)
	e.out = append(e.out, cat(parts...)...)
	e.src = e.src[min(len(e.out)-before, len(e.src)):]
}

// list appends the output of fill as a vector.
func (e *encoder) list(fill func(*encoder)) {
	r := newReader("test", e.src)
	in := encoder{src: r.opaque("list")}
	fill(&in)
	e.put(vec(in.out))
}

// unstored appends opaque fields that the parser did not store.
func (e *encoder) unstored(fields int) {
	for range fields {
		r := newReader("test", e.src)
		e.put(vec(r.opaque("field")))
	}
}

// unstoredBytes appends n bytes that the parser did not store.
func (e *encoder) unstoredBytes(n int) { e.put(e.src[:min(n, len(e.src))]) }

// message appends an MLSMessage from its parsed header. commit and proposalMessage encode the
// content that ParseHeader does not store.
func (e *encoder) message(h Header) {
	e.put(u16(uint16(VersionMLS10), uint16(h.WireFormat)), vec(h.GroupID), u64(h.Epoch))
	if h.WireFormat == WireFormatPrivateMessage {
		e.put(u8(uint8(h.ContentType)))
		e.unstored(3)
		return
	}
	e.sender(h)
	e.unstored(1)
	e.put(u8(uint8(h.ContentType)))
	if h.ContentType == ContentTypeApplication {
		e.unstored(3)
		return
	}
	e.put(e.src)
}

// framedContent appends a PublicMessage up to its body.
func (e *encoder) framedContent(h Header, authenticatedData []byte) {
	e.put(u16(uint16(VersionMLS10), uint16(h.WireFormat)), vec(h.GroupID), u64(h.Epoch))
	e.sender(h)
	e.put(vec(authenticatedData), u8(uint8(h.ContentType)))
}

func (e *encoder) sender(h Header) {
	e.put(u8(uint8(h.SenderType)))
	if h.SenderType == SenderTypeMember || h.SenderType == SenderTypeExternal {
		e.put(u32(h.Sender))
	}
}

func (e *encoder) commit(c *Commit) {
	e.framedContent(c.Header, c.AuthenticatedData)
	e.list(func(e *encoder) {
		for i := range c.Proposals {
			e.proposalOrRef(&c.Proposals[i])
		}
	})
	if c.HasPath {
		e.put(u8(1))
		e.updatePath(c.parts.path)
	} else {
		e.put(u8(0))
	}
	e.put(vec(c.parts.signature), vec(c.ConfirmationTag))
	if c.SenderType == SenderTypeMember {
		e.put(vec(c.parts.membershipTag))
	}
}

func (e *encoder) proposalMessage(m *ProposalMessage) {
	e.framedContent(m.Header, m.AuthenticatedData)
	e.proposal(&m.Proposal)
	if m.Proposal.Opaque {
		e.put(m.parts.opaque[m.parts.typeEnd:])
		return
	}
	e.put(vec(m.parts.signature))
	if m.SenderType == SenderTypeMember {
		e.put(vec(m.parts.membershipTag))
	}
}

func (e *encoder) proposalOrRef(p *Proposal) {
	if p.Type == 0 {
		e.put(u8(2), vec(p.Reference))
		return
	}
	e.put(u8(1))
	e.proposal(p)
}

func (e *encoder) proposal(p *Proposal) {
	e.put(u16(uint16(p.Type)))
	switch p.Type {
	case ProposalAdd:
		e.keyPackage(p.KeyPackage)
	case ProposalUpdate:
		e.leaf(p.leaf)
	case ProposalRemove:
		e.put(u32(p.Removed))
	case ProposalPSK:
		e.psk(p.psk)
	case ProposalReInit:
		e.put(vec(p.ReInit.GroupID), u16(uint16(p.ReInit.Version), uint16(p.ReInit.CipherSuite)))
		e.extensions(p.ReInit.Extensions)
	case ProposalExternalInit:
		e.put(vec(p.kemOutput))
	case ProposalGroupContextExtensions:
		e.extensions(p.Extensions)
	}
	e.put(p.unread)
}

func (e *encoder) psk(id *pskID) {
	if id.usage == 0 {
		e.put(u8(1))
		e.unstored(1)
	} else {
		e.put(u8(2), u8(id.usage))
		e.unstored(1)
		e.unstoredBytes(8)
	}
	e.put(vec(id.nonce))
}

func (e *encoder) updatePath(p *updatePath) {
	e.leaf(&p.leaf)
	e.list(func(e *encoder) {
		for _, n := range p.nodes {
			e.put(vec(n.encryptionKey))
			e.list(func(e *encoder) {
				for r := newReader("test", n.secrets); len(r.s) > 0; {
					e.put(vec(r.opaque("kem_output")), vec(r.opaque("ciphertext")))
				}
			})
		}
	})
}

func (e *encoder) leaf(l *leafNode) {
	e.put(vec(l.encryptionKey), vec(l.signatureKey), u16(uint16(l.credentialType)))
	if l.credentialType == CredentialTypeBasic {
		e.put(vec(l.identity))
	} else {
		e.list(func(e *encoder) {
			for len(e.src) > 0 {
				e.unstored(1)
			}
		})
	}
	c := &l.capabilities
	for _, list := range []u16List{c.versions, c.cipherSuites, c.extensions, c.proposals, c.credentials} {
		e.put(vec(u16(slices.Collect(list.all())...)))
	}
	e.put(u8(uint8(l.source)))
	switch l.source {
	case leafFromKeyPackage:
		e.put(u64(l.notBefore), u64(l.notAfter))
	case leafFromCommit:
		e.put(vec(l.parentHash))
	}
	e.extensions(l.extensions)
	e.put(vec(l.signature))
}

func (e *encoder) extensions(list Extensions) {
	e.list(func(e *encoder) {
		for t, data := range list.All() {
			e.put(ext(t, data...))
		}
	})
}

func (e *encoder) framedKeyPackage(k *KeyPackage) {
	e.frame(WireFormatKeyPackage, k.Raw)
	e.keyPackage(k)
}

// frame appends the MLSMessage header if the object was framed.
func (e *encoder) frame(f WireFormat, bare []byte) {
	if len(bare) < len(e.src) {
		e.put(u16(uint16(VersionMLS10), uint16(f)))
	}
}

func (e *encoder) keyPackage(k *KeyPackage) {
	e.put(u16(uint16(k.Version), uint16(k.CipherSuite)), vec(k.InitKey))
	e.leaf(&k.leaf)
	e.extensions(k.Extensions)
	e.put(vec(k.signature))
}

// framedGroupInfo encodes the tree in a GroupInfo node by node.
func (e *encoder) framedGroupInfo(g GroupInfo) {
	e.frame(WireFormatGroupInfo, g.Raw)
	e.put(u16(uint16(g.Version), uint16(g.CipherSuite)), vec(g.GroupID), u64(g.Epoch),
		vec(g.TreeHash), vec(g.ConfirmedTranscriptHash))
	e.extensions(g.ContextExtensions)
	e.list(func(e *encoder) {
		for t, data := range g.Extensions.All() {
			tree, err := g.Tree()
			if t != ExtensionRatchetTree || err != nil { // no Tree if the hash is unknown
				e.put(ext(t, data...))
				continue
			}
			e.put(u16(uint16(t)))
			e.list(func(e *encoder) { e.tree(tree) })
		}
	})
	e.put(vec(g.ConfirmationTag), u32(g.Signer), vec(g.Signature))
}

func (e *encoder) welcome(w Welcome) {
	e.put(u16(uint16(VersionMLS10), uint16(WireFormatWelcome), uint16(w.CipherSuite)))
	e.list(func(e *encoder) {
		for _, ref := range w.Refs {
			e.put(vec(ref))
			e.unstored(2)
		}
	})
	e.unstored(1)
}

func (e *encoder) tree(t *Tree) {
	end := 0 // blank nodes at the end are not written
	for x := range len(t.leaves) + len(t.parents) {
		if leaf, parent := t.at(nodeIndex(x)); leaf != nil || parent != nil {
			end = x + 1
		}
	}
	e.list(func(e *encoder) {
		for x := range end {
			leaf, parent := t.at(nodeIndex(x))
			switch {
			case leaf != nil:
				e.put(u8(1), u8(1))
				e.leaf(leaf)
			case parent != nil:
				e.put(u8(1), u8(2), vec(parent.encryptionKey), vec(parent.parentHash))
				e.list(func(e *encoder) {
					for _, leaf := range parent.unmerged {
						e.put(u32(leaf))
					}
				})
			default:
				e.put(u8(0))
			}
		}
	})
}
