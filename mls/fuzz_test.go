package mls

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// checkParse checks what is true for any input. There is a result, or a ParseError of a known kind.
// A copy gives the same. The input is unchanged. If the input parses, no longer and no shorter
// input does, and the encoding of the result equals the input.
func checkParse[T any](t *testing.T, kind string, data []byte, parse func([]byte) (T, error), opts ...cmp.Option) (T,
	bool) {
	t.Helper()
	before := bytes.Clone(data)
	got, err := parse(data)
	again, err2 := parse(before)
	if !bytes.Equal(before, data) {
		t.Fatal("the input was modified")
	}
	if (err == nil) != (err2 == nil) || !cmp.Equal(got, again, opts...) {
		t.Fatalf("parsed twice: %+v %v, then %+v %v", got, err, again, err2)
	}
	if err != nil {
		var p *ParseError
		if !errors.As(err, &p) || p.Object == "" || len(p.Error()) > 300 {
			t.Fatalf("not a proper ParseError: %v", err)
		}
		for _, kind := range []error{ErrMalformed, ErrUnsupported, ErrTooLarge} {
			if errors.Is(err, kind) {
				return got, false
			}
		}
		t.Fatalf("of no known kind: %v", err)
	}
	if m, err := ParseProposal(data); err != nil || !m.Proposal.Opaque { // nothing says where an opaque one ends
		for _, n := range []int{len(data) - 1, len(data) / 2, 6, 4, 0} {
			if n < len(data) {
				if _, err := parse(data[:n:n]); err == nil {
					t.Fatalf("accepted cut to %d of %d bytes", n, len(data))
				}
			}
		}
		if _, err := parse(append(before, 0)); err == nil {
			t.Fatal("accepted with a trailing byte")
		}
	}
	if err := codecs[kind].checkSame(data); err != nil {
		t.Fatal(err)
	}
	return got, true
}

func FuzzHeader(f *testing.F) {
	f.Add(privateMessage(1, ContentTypeApplication, 40))
	f.Add(publicCommit(1, testCommit(f)))
	f.Add(publicCommit(1, cat(vec(), u8(0))))
	for _, p := range testProposals(f) {
		f.Add(framed(1, cat(content(4, member(0), 2, p), testTag, testTag)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, ok := checkParse(t, "Header", data, ParseHeader)
		if !ok {
			return
		}
		if h.Epoch > MaxEpoch || len(h.GroupID) == 0 || len(h.GroupID) > MaxGroupIDSize {
			t.Fatalf("out of range: %+v", h)
		}
		if private := h.WireFormat == WireFormatPrivateMessage; private != (h.SenderType == 0) {
			t.Fatalf("sender type %v of a %v", h.SenderType, h.WireFormat)
		}
		// The fields are at the offsets of §6.
		start := cat(u16(1, uint16(h.WireFormat)), vec(h.GroupID), u64(h.Epoch))
		if !bytes.HasPrefix(data, start) {
			t.Fatalf("%x does not begin with %x", data, start)
		}
	})
}

func FuzzWelcome(f *testing.F) {
	f.Add(testWelcome(testRef(1)))
	f.Add(testWelcome(testRef(1), testRef(2)))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, ok := checkParse(t, "Welcome", data, ParseWelcome)
		if !ok {
			return
		}
		if len(w.Refs) == 0 {
			t.Fatal("no recipients")
		}
		for i, ref := range w.Refs {
			for _, other := range w.Refs[:i] {
				if bytes.Equal(ref, other) {
					t.Fatalf("%s twice", ref)
				}
			}
		}
	})
}

func FuzzGroupInfo(f *testing.F) {
	s := newGroupInfo()
	f.Add(framed(4, s.build()))
	f.Add(s.build())
	s.own = cat(ext(ExtensionRatchetTree, testTree(f)...), ext(ExtensionExternalPub, vec(make([]byte, 32))...))
	f.Add(s.build())
	f.Fuzz(func(t *testing.T, data []byte) {
		g, ok := checkParse(t, "GroupInfo", data, ParseGroupInfo)
		if !ok {
			return
		}
		if !bytes.HasSuffix(data, g.Raw) {
			t.Fatal("Raw is not the GroupInfo")
		}
		if g.HasRatchetTree != g.Extensions.Has(ExtensionRatchetTree) {
			t.Fatal("HasRatchetTree is wrong")
		}
	})
}

func FuzzKeyPackage(f *testing.F) {
	for _, suite := range supportedSuites {
		bare := newSpec(f, suite).build(f)
		f.Add(bare)
		f.Add(framed(5, bare))
	}
	opts := cmp.AllowUnexported(KeyPackage{}, leafNode{}, capabilities{})
	f.Fuzz(func(t *testing.T, data []byte) {
		k, ok := checkParse(t, "KeyPackage", data, ParseKeyPackage, opts)
		if !ok {
			return
		}
		if !bytes.HasSuffix(data, k.Raw) || len(data)-len(k.Raw) != 0 && len(data)-len(k.Raw) != 4 {
			t.Fatal("Raw is not the input without its frame")
		}
		// The bare and the framed form give the same KeyPackage.
		for _, other := range [][]byte{k.Raw, framed(5, k.Raw)} {
			if len(other) > MaxKeyPackageSize {
				continue
			}
			o, err := ParseKeyPackage(other)
			if err != nil || !cmp.Equal(k, o, opts) {
				t.Fatalf("framing changes the object: %v", err)
			}
		}
		// The TBS parts and the signatures together are the whole object.
		if !bytes.Equal(k.Raw, cat(k.tbs, vec(k.signature))) {
			t.Fatal("KeyPackageTBS and signature are not the KeyPackage")
		}
		leaf := cat(k.leaf.tbs, vec(k.leaf.signature))
		if !bytes.Equal(k.tbs, cat(u16(1, uint16(k.CipherSuite)), vec(k.InitKey), leaf, vec(k.Extensions))) {
			t.Fatal("KeyPackageTBS is not its parts")
		}
		err := k.Check(testNow)
		if verr := k.VerifySignatures(); verr == nil && !k.CipherSuite.Supported() {
			t.Fatal("verified a signature of an unknown kind")
		}
		if err == nil && k.NotAfter.Sub(k.NotBefore) > MaxLifetime {
			t.Fatal("lifetime too long")
		}
	})
}
