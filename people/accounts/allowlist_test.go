package accounts_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"

	"mlsd/people/accounts"
)

// list is an Allowlist and its file.
type list struct {
	*accounts.Allowlist
	t       *testing.T
	path    string
	removed []syntax.DID
	version int
}

func newList(t *testing.T, text string) *list {
	t.Helper()
	l := &list{t: t, path: filepath.Join(t.TempDir(), "admitted")}
	l.write(text)
	var err error
	if l.Allowlist, err = accounts.NewAllowlist(l.path, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	l.OnRemoved(func(did syntax.DID) { l.removed = append(l.removed, did) })
	return l
}

// write replaces the file. Each version has a newer time.
func (l *list) write(text string) {
	l.t.Helper()
	l.version++
	at := noon.Add(time.Duration(l.version) * time.Second)
	if err := errors.Join(os.WriteFile(l.path, []byte(text), 0o600), os.Chtimes(l.path, at, at)); err != nil {
		l.t.Fatal(err)
	}
}

func (l *list) has() (found []syntax.DID) {
	for _, did := range []syntax.DID{alice, bob, carol} {
		if l.Has(did) {
			found = append(found, did)
		}
	}
	return found
}

func TestAllowlist(t *testing.T) {
	t.Parallel()
	l := newList(t, "# friends\n"+alice.String()+"\n\n  "+bob.String()+" # since May\r\n")
	if diff := cmp.Diff([]syntax.DID{alice, bob}, l.has()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	l.write(carol.String() + "\n" + bob.String())
	if err := l.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]syntax.DID{bob, carol}, l.has()); diff != "" {
		t.Errorf("after a change (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]syntax.DID{alice}, l.removed); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}
}

// A broken file changes nothing, and is reported as long as it is broken.
func TestBrokenAllowlist(t *testing.T) {
	t.Parallel()
	l := newList(t, alice.String())
	for text, want := range map[string]string{
		bob.String() + "\nbob\n": "line 2", "": "no DID", "# all gone\n": "no DID",
		bob.String() + " " + carol.String(): "line 1",
	} {
		l.write(text)
		for range 2 {
			if err := l.RunOnce(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", text, err, want)
			}
		}
		if _, err := accounts.NewAllowlist(l.path, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%q was accepted at the start", text)
		}
	}
	if err := os.Remove(l.path); err != nil {
		t.Fatal(err)
	}
	if err := l.RunOnce(t.Context()); err == nil {
		t.Error("a missing file is no error")
	}
	if diff := cmp.Diff([]syntax.DID{alice}, l.has()); diff != "" || l.removed != nil {
		t.Errorf("removed %v (-want +got):\n%s", l.removed, diff)
	}
}

// A change that leaves size and time of the file as they are is seen when somebody asks for it.
func TestAllowlistAgain(t *testing.T) {
	t.Parallel()
	l := newList(t, alice.String())
	l.version-- // the same time again
	l.write(bob.String())
	if err := l.RunOnce(t.Context()); err != nil || !l.Has(alice) {
		t.Fatalf("the file was read: %v", err)
	}
	l.Again()
	<-l.Wake
	if err := l.RunOnce(t.Context()); err != nil || l.Has(alice) || !l.Has(bob) {
		t.Fatalf("the file was not read: %v, %v", err, l.has())
	}
}

func TestModeAllowlist(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := newList(t, alice.String()+"\n"+bob.String())
	n := f.node(func(c *accounts.GateConfig) { c.Mode, c.List = accounts.ModeAllowlist, l.Allowlist })
	f.check(n.check(alice))
	if err := n.check(carol); !errors.Is(err, accounts.ErrNotAdmitted) {
		t.Errorf("carol: %v", err)
	}
	f.block(bob)
	n.update()
	if err := n.check(bob); !errors.Is(err, accounts.ErrBlocked) {
		t.Errorf("bob: %v", err)
	}
	withheld, err := n.Withheld(t.Context(), []syntax.DID{alice, bob, carol})
	if diff := cmp.Diff([]syntax.DID{bob, carol}, withheld); err != nil || diff != "" {
		t.Errorf("withheld: %v (-want +got):\n%s", err, diff)
	}
}
