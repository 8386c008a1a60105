package history

import (
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
)

// After a restore, a write that is not in the log is gone until it is acknowledged again, at any
// place. A write that stays gone is lost, unless its sender never came back.
func TestRestoredModel(t *testing.T) {
	t.Parallel()
	const alice, bob, carol = syntax.DID("did:plc:alice"), syntax.DID("did:plc:bob"), syntax.DID("did:plc:carol")
	m := NewModel()
	m.Created("c", []byte("g"), 1, true, alice, []syntax.DID{bob})
	sent := func(who syntax.DID, text string, seq int64) {
		t.Helper()
		if _, err := m.Acked("c",
			Sent{Text: text, Sender: who, Digest: DigestOf([]byte(text)), ID: "id", Seq: seq, Epoch: 1}); err != nil {
			t.Fatal(err)
		}
	}
	sent(alice, "kept", 1)
	sent(alice, "lost", 2)
	sent(bob, "lost too", 3)
	m.Joined("c", alice, 4, []syntax.DID{carol})
	m.Restored("c", []mlsapi.MessageView{{Ciphertext: []byte("kept")}}, []syntax.DID{alice, bob})

	judge := func() (found []Violation, named []string) {
		return m.convos["c"].CheckRestored(func(did syntax.DID) bool { return did == bob })
	}
	if found, named := judge(); len(found) != 2 || len(named) != 1 || !strings.Contains(named[0], "lost too") {
		t.Errorf("after the restore, found %v and named %v", found, named)
	}
	if m.Live("c", carol) {
		t.Error("a member whose addition was lost is still there")
	}
	sent(alice, "lost", 5)
	m.Joined("c", alice, 6, []syntax.DID{carol})
	if found, named := judge(); len(found) != 0 || len(named) != 1 {
		t.Errorf("after all was made good, found %v and named %v", found, named)
	}
	items := []Item{{Text: "kept"}}
	if unread := m.convos["c"].Unread(alice, items); len(unread) != 1 || unread[0] != "lost" {
		t.Errorf("alice has not read %q", unread)
	}
}
