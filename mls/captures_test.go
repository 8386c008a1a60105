package mls

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// capturedGroup is what an MLS library made for one group. The simulator's test TestAgents writes
// testdata with mls-go, OpenMLS and ts-mls, of which the last gets corrections:
//
//	MLSD_MLS_AGENTS=FOLDER go test ./clientsim/mlsclient -run TestAgents -update
type capturedGroup struct {
	Library   string
	Suite     CipherSuite
	Taken     time.Time
	GroupInfo []byte
	Steps     []capturedStep
	Message   []byte
}

// capturedStep is a commit with all that was sent with it.
type capturedStep struct {
	What        string
	KeyPackages [][]byte
	Commit      []byte
	Welcome     []byte
	GroupInfo   []byte
	Members     []string
}

// Real objects of three independent libraries are accepted, and say what their makers meant. The
// same objects with a flipped bit are refused.
func TestCaptures(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*-suite*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 6 { // three libraries, two suites
		t.Fatalf("testdata has %v", files)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var c capturedGroup
			if err := json.Unmarshal(data, &c); err != nil {
				t.Fatal(err)
			}
			c.check(t)
		})
	}
}

func (c *capturedGroup) check(t *testing.T) {
	t.Helper()
	g := capturedState(t, c.GroupInfo)
	if g.Epoch != 0 || g.CipherSuite != c.Suite {
		t.Fatalf("the first GroupInfo is of epoch %d and suite %v", g.Epoch, g.CipherSuite)
	}
	hidden, external := 0, 0
	for _, s := range c.Steps {
		h := must(ParseHeader(s.Commit))(t)
		if h.ContentType != ContentTypeCommit || h.Epoch != g.Epoch || !bytes.Equal(h.GroupID, g.GroupID) {
			t.Errorf("%s: header %+v in epoch %d", s.What, h, g.Epoch)
		}
		next := capturedState(t, s.GroupInfo)
		if next.Epoch != g.Epoch+1 {
			t.Errorf("%s: the GroupInfo is of epoch %d", s.What, next.Epoch)
		}
		if h.WireFormat == WireFormatPrivateMessage {
			hidden++
		} else {
			change := c.apply(t, g, &s)
			if change.External {
				external++
			}
			if !bytes.Equal(change.Next.Encode(), next.Encode()) {
				t.Errorf("%s: the commit leads elsewhere than its GroupInfo", s.What)
			}
		}
		var members []string
		for m := range next.Tree.Members() {
			members = append(members, m.Identity)
		}
		if diff := cmp.Diff(s.Members, members); diff != "" {
			t.Errorf("%s: members (-captured +read):\n%s", s.What, diff)
		}
		c.checkAdditions(t, &s)
		g = next
	}
	if hidden != 1 || external != 2 {
		t.Errorf("%d hidden and %d external commits, want 1 and 2", hidden, external)
	}
	if h := must(ParseHeader(c.Message))(t); h.ContentType != ContentTypeApplication || h.Epoch != g.Epoch {
		t.Errorf("the message's header is %+v in epoch %d", h, g.Epoch)
	}
}

// capturedState verifies a GroupInfo. With a changed signature it is refused.
func capturedState(t *testing.T, message []byte) *Group {
	t.Helper()
	info := must(ParseGroupInfo(message))(t)
	if !info.HasRatchetTree || !info.HasExternalPub {
		t.Errorf("a GroupInfo without tree or external_pub")
	}
	g := must(info.Verify(must(info.Tree())(t)))(t)
	bad := info
	bad.Signature = flipped(info.Signature)
	if _, err := bad.Verify(g.Tree); !errors.Is(err, ErrBadSignature) && !errors.Is(err, ErrMalformed) {
		t.Errorf("a GroupInfo with another signature: %v", err)
	}
	return g
}

// flipped returns a copy with the last bit flipped.
func flipped(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)-1] ^= 1
	return b
}

func (c *capturedGroup) apply(t *testing.T, g *Group, s *capturedStep) *Change {
	t.Helper()
	change, err := g.Apply(must(ParseCommit(s.Commit))(t))
	if err != nil {
		t.Fatalf("%s: %v", s.What, err)
	}
	info := must(ParseGroupInfo(s.GroupInfo))(t)
	if err := change.Next.Matches(&info); err != nil {
		t.Errorf("%s: the GroupInfo does not match: %v", s.What, err)
	}
	checkChange(t, g, change)
	checkMutations(t, g, s.Commit, nil, int(g.Epoch))
	return change
}

// checkAdditions checks the KeyPackages of a step, and that its Welcome is for them.
func (c *capturedGroup) checkAdditions(t *testing.T, s *capturedStep) {
	t.Helper()
	if len(s.KeyPackages) == 0 {
		if s.Welcome != nil {
			t.Errorf("%s has a Welcome", s.What)
		}
		return
	}
	var want, got []string
	for _, message := range s.KeyPackages {
		k := must(ParseKeyPackage(message))(t)
		if err := k.Check(c.Taken); err != nil {
			t.Errorf("%s: %v", s.What, err)
		}
		if err := k.VerifySignatures(); err != nil {
			t.Errorf("%s: %v", s.What, err)
		}
		if k, err := ParseKeyPackage(flipped(message)); err == nil && k.VerifySignatures() == nil {
			t.Errorf("%s: a KeyPackage with another signature is accepted", s.What)
		}
		want = append(want, k.Ref.String())
	}
	for _, ref := range must(ParseWelcome(s.Welcome))(t).Refs {
		got = append(got, ref.String())
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: the Welcome's KeyPackages (-added +named):\n%s", s.What, diff)
	}
}
