package mlsclient

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	mlsext "github.com/thomas-vilte/mls-go/extensions"

	. "mlsd/clientsim/steps"
)

// BadProposal returns an encoded proposal, for Raw, that no commit should contain: it does what its
// sender may not do, needs what nobody has, or breaks a rule of RFC 9420. It also returns its name.
// The sender is a device of g that is not an admin.
func BadProposal(g Group, rng *rand.Rand) (name string, proposal []byte, err error) {
	defer CatchIn(&err, "make a bad proposal")
	kinds := badProposals()
	kind := kinds[rng.IntN(len(kinds))]
	return kind.name, Must(kind.make(g, rng)), nil
}

// The bad proposals that only members can judge, and one that some groups take.
const (
	UnknownPSK = "PSK that nobody has"
	LaterPSK   = "resumption PSK of a later epoch"
	// LeavesItself is good in a group whose other members all support it: the attacker leaves.
	LeavesItself = "SelfRemove, which its sender does not support"
)

type badProposal struct {
	name string
	make func(g Group, rng *rand.Rand) ([]byte, error)
}

// badProposals lists the kinds.
func badProposals() []badProposal {
	const (
		typeAdd, typeUpdate, typeRemove, typePSK                  = 1, 2, 3, 4
		typeReInit, typeExternalInit, typeContext, typeSelfRemove = 5, 6, 7, 10
	)
	encode := func(kind uint16, parts ...[]byte) ([]byte, error) {
		return append(u16(kind), slices.Concat(parts...)...), nil
	}
	extension := func(kind uint16, data []byte) []byte { return appendVector(u16(kind), data) }
	extensions := func(all ...[]byte) []byte { return appendVector(nil, slices.Concat(all...)) }
	return []badProposal{
		{"Remove of another", func(g Group, rng *rand.Rand) ([]byte, error) {
			others := slices.DeleteFunc(g.Leaves(), func(l Leaf) bool { return l.Index == g.Own() })
			return encode(typeRemove, u32(others[rng.IntN(len(others))].Index))
		}},
		{"Remove of a leaf that is not there", func(_ Group, rng *rand.Rand) ([]byte, error) {
			return encode(typeRemove, u32(1000+uint32(rng.IntN(1000))))
		}},
		{"Add of an outsider", func(_ Group, rng *rand.Rand) ([]byte, error) {
			kp, err := outsidersPackage(rng)
			return append(u16(typeAdd), kp...), err
		}},
		{"damaged Add", func(_ Group, rng *rand.Rand) ([]byte, error) {
			kp, err := outsidersPackage(rng)
			if err == nil {
				kp[len(kp)-1-rng.IntN(60)] ^= 1 << rng.IntN(8)
			}
			return append(u16(typeAdd), kp...), err
		}},
		{"Update to another's leaf", func(_ Group, rng *rand.Rand) ([]byte, error) {
			device, err := NewDevice(outsider(rng), SuiteX25519)
			if err != nil {
				return nil, err
			}
			kp, err := device.KeyPackage()
			if err != nil {
				return nil, err
			}
			parsed, err := readPackage(kp.Message)
			if err != nil {
				return nil, err
			}
			return encode(typeUpdate, parsed.LeafNode.Marshal())
		}},
		{UnknownPSK, func(_ Group, rng *rand.Rand) ([]byte, error) {
			return encode(typePSK, []byte{1}, appendVector(nil, randomOf(rng, 16)), appendVector(nil, randomOf(rng, 32)))
		}},
		{"PSK with a wrong nonce", func(_ Group, rng *rand.Rand) ([]byte, error) {
			nonce := randomOf(rng, rng.IntN(32))
			return encode(typePSK, []byte{1}, appendVector(nil, randomOf(rng, 16)), appendVector(nil, nonce))
		}},
		{LaterPSK, func(g Group, rng *rand.Rand) ([]byte, error) {
			later := binary.BigEndian.AppendUint64(nil, g.Epoch()+1+rng.Uint64N(1000))
			return encode(typePSK, []byte{2, 1}, appendVector(nil, g.ID()), later, appendVector(nil, randomOf(rng, 32)))
		}},
		{"ReInit", func(_ Group, rng *rand.Rand) ([]byte, error) {
			return encode(typeReInit, appendVector(nil, randomOf(rng, 16)), u16(1), u16(uint16(SuiteX25519)), extensions())
		}},
		{"ExternalInit", func(_ Group, rng *rand.Rand) ([]byte, error) {
			return encode(typeExternalInit, appendVector(nil, randomOf(rng, 32)))
		}},
		{"external_senders", func(g Group, _ *rand.Rand) ([]byte, error) {
			leaves := g.Leaves()
			own := leaves[slices.IndexFunc(leaves, func(l Leaf) bool { return l.Index == g.Own() })]
			sender := slices.Concat(appendVector(nil, own.SignatureKey), u16(1), appendVector(nil, []byte(own.Identity)))
			return encode(typeContext, extensions(extension(uint16(mlsext.ExtensionTypeExternalSenders),
				appendVector(nil, sender))))
		}},
		{"an extension that nobody supports", func(_ Group, rng *rand.Rand) ([]byte, error) {
			return encode(typeContext, extensions(extension(0xF00D, randomOf(rng, 20))))
		}},
		{LeavesItself, func(Group, *rand.Rand) ([]byte, error) { return encode(typeSelfRemove) }},
		{"custom type, which nobody supports", func(_ Group, rng *rand.Rand) ([]byte, error) {
			return encode(0xF001, randomOf(rng, rng.IntN(100)))
		}},
		{"noise", func(_ Group, rng *rand.Rand) ([]byte, error) {
			return encode(uint16(1+rng.IntN(7)), randomOf(rng, rng.IntN(200)))
		}},
	}
}

// outsider returns the DID of nobody.
func outsider(rng *rand.Rand) string { return fmt.Sprintf("did:web:outsider-%d.test", rng.Uint32()) }

// outsidersPackage returns a KeyPackage of nobody in the group, without its MLSMessage header.
func outsidersPackage(rng *rand.Rand) ([]byte, error) {
	device, err := NewDevice(outsider(rng), SuiteX25519)
	if err != nil {
		return nil, err
	}
	kp, err := device.KeyPackage()
	if err != nil {
		return nil, err
	}
	return unwrap(formatKeyPackage, kp.Message)
}

func u16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func u32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

// randomOf returns n bytes of rng, so that the run can be played again.
func randomOf(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}
