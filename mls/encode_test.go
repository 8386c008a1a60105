package mls

import (
	"bytes"
	"fmt"
	"slices"
)

// codec parses an object and encodes it again from the fields it was parsed
// into. Nothing comes from Raw, tbs, content or another part of the input that
// spans several fields, so that a parser which puts a field in the wrong place,
// or drops one, does not come out even.
type codec func(data []byte) ([]byte, error)

// codecs has one for each kind of object that a server is sent.
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

// parse is the codec's parser, result dropped.
func (c codec) parse(data []byte) error { _, err := c(data); return err }

// checkSame checks that data is accepted and comes out as it was.
func (c codec) checkSame(data []byte) error {
	again, err := c(data)
	if err == nil && !bytes.Equal(again, data) {
		err = fmt.Errorf("encoded again as %x, was %x", again, data)
	}
	return err
}

// encoder writes an object beside the bytes that it was parsed from. The fields
// that a parser reads past and does not keep are read from there again, one by
// one, at the place that the encoding has reached: certificates, the parts of a
// ReInit, the id of a PSK, HPKE ciphertexts, and what is encrypted to members.
type encoder struct {
	out []byte
	src []byte // what is left of the original
}

func (e *encoder) put(parts ...[]byte) {
	before := len(e.out)
	e.out = append(e.out, cat(parts...)...)
	e.src = e.src[min(len(e.out)-before, len(e.src)):]
}

// list puts what fill writes as a vector.
func (e *encoder) list(fill func(*encoder)) {
	r := newReader("test", e.src)
	in := encoder{src: r.opaque("list")}
	fill(&in)
	e.put(vec(in.out))
}

// unkept puts opaque fields that were not kept.
func (e *encoder) unkept(fields int) {
	for range fields {
		r := newReader("test", e.src)
		e.put(vec(r.opaque("field")))
	}
}

// unkeptBytes puts n bytes that were not kept.
func (e *encoder) unkeptBytes(n int) { e.put(e.src[:min(n, len(e.src))]) }

// message puts an MLSMessage of which only the header was parsed. Content that
// ParseHeader walks over is for commit and proposalMessage to encode.
func (e *encoder) message(h Header) {
	e.put(u16(uint16(VersionMLS10), uint16(h.WireFormat)), vec(h.GroupID), u64(h.Epoch))
	if h.WireFormat == WireFormatPrivateMessage {
		e.put(u8(uint8(h.ContentType)))
		e.unkept(3)
		return
	}
	e.sender(h)
	e.unkept(1)
	e.put(u8(uint8(h.ContentType)))
	if h.ContentType == ContentTypeApplication {
		e.unkept(3)
		return
	}
	e.put(e.src)
}

// framedContent puts a PublicMessage up to what its body says.
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
		e.unkept(1)
		e.unkeptBytes(4)
		e.list(func(e *encoder) {
			for len(e.src) > 0 {
				e.unkeptBytes(2)
				e.unkept(1)
			}
		})
	case ProposalExternalInit:
		e.put(vec(p.kemOutput))
	case ProposalGroupContextExtensions:
		e.extensions(p.Extensions)
	}
}

func (e *encoder) psk(id *pskID) {
	if id.usage == 0 {
		e.put(u8(1))
		e.unkept(1)
	} else {
		e.put(u8(2), u8(id.usage))
		e.unkept(1)
		e.unkeptBytes(8)
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
				e.unkept(1)
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

// frame puts the MLSMessage header if the object was found in one.
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
			if t != ExtensionRatchetTree || err != nil { // a suite whose hash is not known has no Tree
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
			e.unkept(2)
		}
	})
	e.unkept(1)
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
