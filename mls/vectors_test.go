package mls

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// hexBytes is a byte string in hexadecimal, as in the working group's vectors.
type hexBytes []byte

func (h *hexBytes) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	*h = b
	return err
}

// loadVectors reads one file of the MLS working group's test vectors. They are not part of this
// repository. Without them it skips the test.
func loadVectors[T any](t *testing.T, name string) []T {
	t.Helper()
	dir := os.Getenv("MLSD_MLS_VECTORS")
	if dir == "" {
		t.Skip("MLSD_MLS_VECTORS is not set: no MLS test vectors to check against")
	}
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []T
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) == 0 {
		t.Fatalf("%s is empty", name)
	}
	return vectors
}

type messagesVector struct {
	Welcome           hexBytes `json:"mls_welcome"`
	GroupInfo         hexBytes `json:"mls_group_info"`
	KeyPackage        hexBytes `json:"mls_key_package"`
	RatchetTree       hexBytes `json:"ratchet_tree"`
	AddProposal       hexBytes `json:"add_proposal"`
	UpdateProposal    hexBytes `json:"update_proposal"`
	RemoveProposal    hexBytes `json:"remove_proposal"`
	PSKProposal       hexBytes `json:"pre_shared_key_proposal"`
	ReInitProposal    hexBytes `json:"re_init_proposal"`
	ExternalInit      hexBytes `json:"external_init_proposal"`
	ContextExtensions hexBytes `json:"group_context_extensions_proposal"`
	Commit            hexBytes `json:"commit"`
	PublicApplication hexBytes `json:"public_message_application"`
	PublicProposal    hexBytes `json:"public_message_proposal"`
	PublicCommit      hexBytes `json:"public_message_commit"`
	PrivateMessageAny hexBytes `json:"private_message"`
}

// checkExact checks that parse accepts data, but no shorter prefix of it, and not data with bytes
// appended.
func checkExact(parse func([]byte) error, data []byte) error {
	return checkExactAt(parse, data, 0, 1)
}

// checkExactAt is checkExact with cuts at every step bytes from the first, and before the last ones.
func checkExactAt(parse func([]byte) error, data []byte, first, step int) error {
	if err := parse(data); err != nil {
		return err
	}
	for n := 0; n < len(data); n++ {
		if n%step == first || n > len(data)-8 {
			if parse(data[:n:n]) == nil {
				return fmt.Errorf("accepted cut to %d of %d bytes", n, len(data))
			}
		}
	}
	for _, more := range [][]byte{{0}, {1}, {0xff}, make([]byte, 2), make([]byte, 3), make([]byte, 4), make([]byte, 33),
		data} {
		if parse(cat(data, more)) == nil {
			return fmt.Errorf("accepted with %d trailing bytes", len(more))
		}
	}
	return nil
}

type passiveVector struct {
	CipherSuite CipherSuite `json:"cipher_suite"`
	KeyPackage  hexBytes    `json:"key_package"`
	Welcome     hexBytes    `json:"welcome"`
	RatchetTree hexBytes    `json:"ratchet_tree"`
	Epochs      []struct {
		Proposals []hexBytes `json:"proposals"`
		Commit    hexBytes   `json:"commit"`
	} `json:"epochs"`
}

// TestVectorsJoin reads whole conversations. Each KeyPackage's reference must be in the Welcome for
// it, its signatures must verify, and the epochs of commits must be consecutive.
func TestVectorsJoin(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"welcome.json", "passive-client-welcome.json", "passive-client-handling-commit.json",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			verified := 0
			for i, v := range loadVectors[passiveVector](t, name) {
				k, err := ParseKeyPackage(v.KeyPackage)
				if err != nil {
					t.Fatalf("%d: %v", i, err)
				}
				if k.CipherSuite != v.CipherSuite {
					t.Errorf("%d: cipher suite %d, want %d", i, k.CipherSuite, v.CipherSuite)
				}
				if k.CipherSuite.Supported() {
					if err := k.VerifySignatures(); err != nil {
						t.Errorf("%d: %v", i, err)
					}
					// These objects practically never expire: not_after is far in the future.
					// Those of suite 7 do not list it in their capabilities.
					if err := k.Check(k.NotBefore); err != nil && !errors.Is(err, ErrLifetimeTooLong) &&
						k.CipherSuite != SuiteP384AES256 {
						t.Errorf("%d: %v", i, err)
					}
					verified++
				} else if err := k.VerifySignatures(); !errors.Is(err, ErrUnsupported) {
					t.Errorf("%d: got %v, want ErrUnsupported", i, err)
				}
				w, err := ParseWelcome(v.Welcome)
				if err != nil {
					t.Fatalf("%d: %v", i, err)
				}
				named := func(r KeyPackageRef) bool { return bytes.Equal(r, k.Ref) }
				if w.CipherSuite != v.CipherSuite || !slices.ContainsFunc(w.Refs, named) {
					t.Errorf("%d: Welcome does not name the KeyPackage", i)
				}
				if v.RatchetTree != nil {
					if err := checkRatchetTree(v.RatchetTree); err != nil {
						t.Errorf("%d: %v", i, err)
					}
				}
				checkEpochs(t, i, v)
			}
			if verified == 0 {
				t.Error("no signature was verified")
			}
		})
	}
}

func checkEpochs(t *testing.T, i int, v passiveVector) {
	t.Helper()
	var first Header
	for n, e := range v.Epochs {
		h, err := ParseHeader(e.Commit)
		if err != nil {
			t.Errorf("%d: commit %d: %v", i, n, err)
			return
		}
		if n == 0 {
			first = h
		}
		if h.ContentType != ContentTypeCommit || h.Epoch != first.Epoch+uint64(n) || !bytes.Equal(h.GroupID, first.GroupID) {
			t.Errorf("%d: commit %d: header %+v does not follow %+v", i, n, h, first)
		}
		for m, p := range e.Proposals {
			h, err := ParseHeader(p)
			if err != nil || h.ContentType != ContentTypeProposal || h.Epoch != first.Epoch+uint64(n) {
				t.Errorf("%d: proposal %d.%d: header %+v, error %v", i, n, m, h, err)
			}
		}
	}
}

// TestVectorsTrees parses every tree and verifies the signatures of the leaves from a KeyPackage.
func TestVectorsTrees(t *testing.T) {
	t.Parallel()
	type vector struct {
		CipherSuite CipherSuite `json:"cipher_suite"`
		Tree        hexBytes    `json:"tree"`
	}
	verified := 0
	for i, v := range loadVectors[vector](t, "tree-validation.json") {
		if err := checkRatchetTree(v.Tree); err != nil {
			t.Errorf("%d: %v", i, err)
			continue
		}
		r := newReader("test", v.Tree)
		r.vector("nodes", func(r *reader) {
			if !r.optional("node") {
				return
			}
			if r.u8("node_type") != 1 {
				r.parentNode()
				return
			}
			leaf := r.leafNode()
			if leaf.source != leafFromKeyPackage || !v.CipherSuite.Supported() {
				return
			}
			verified++
			verify := v.CipherSuite.verifier(leaf.signatureKey)
			if verify == nil || !verify(signContent("LeafNodeTBS", leaf.tbs), leaf.signature) {
				t.Errorf("%d: leaf signature does not verify", i)
			}
		})
	}
	if verified == 0 {
		t.Error("no signature was verified")
	}
}

func TestVectorsVarint(t *testing.T) {
	t.Parallel()
	type vector struct {
		Header hexBytes `json:"vlbytes_header"`
		Length int      `json:"length"`
	}
	for _, v := range loadVectors[vector](t, "deserialization.json") {
		r := newReader("test", v.Header)
		if n := r.varint("length"); n != v.Length || r.finish() != nil {
			t.Errorf("%x: read %d (%v), want %d", []byte(v.Header), n, r.err, v.Length)
		}
		if got := appendVarint(nil, v.Length); !bytes.Equal(got, v.Header) {
			t.Errorf("%d: wrote %x, want %x", v.Length, got, []byte(v.Header))
		}
	}
}
