package api_test

import (
	"fmt"
	"slices"
	"testing"

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
)

// Lists that are encoded element by element are the bytes that the generated encoders write.
func TestListsAreCanonical(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	alice.create()
	in := alice.message(c, "1")
	in.EmbedType, in.EmbedURI = text("a \"link\""), text("https://example.com/?a=<b>&c=%C3%A9")
	alice.post(mlsapi.NSIDSendMessage, in).ok()
	alice.add(c, w.user())
	for _, test := range []struct {
		nsid   string
		params []string
		want   int // elements
		more   bool
	}{
		{mlsapi.NSIDGetMessages, []string{"convoId", c.id, "messageType", "all"}, 2, false},
		{mlsapi.NSIDGetMessages, []string{"convoId", c.id, "messageType", "all", "limit", "1"}, 1, true},
		{mlsapi.NSIDGetMessages, []string{"convoId", c.id, "sinceSeq", "2"}, 0, false},
		{mlsapi.NSIDGetConvos, nil, 2, false},
		{mlsapi.NSIDGetConvos, []string{"limit", "1"}, 1, true},
		{mlsapi.NSIDGetCommits, []string{"convoId", c.id, "fromEpoch", "1"}, 1, false},
		{mlsapi.NSIDGetCommits, []string{"convoId", c.id, "fromEpoch", "3"}, 0, false},
		{mlsapi.NSIDGetConvo, []string{"convoId", c.id}, 1, false},
	} {
		a := alice.get(test.nsid, test.params...)
		var decoded lexcodec.Appender
		var n int
		var cursor *string
		switch test.nsid {
		case mlsapi.NSIDGetMessages:
			out := read[mlsapi.GetMessagesOutput](t, a.ok())
			decoded, n, cursor = &out, len(out.Messages), out.Cursor
		case mlsapi.NSIDGetConvos:
			out := read[mlsapi.GetConvosOutput](t, a.ok())
			decoded, n, cursor = &out, len(out.Conversations), out.Cursor
		case mlsapi.NSIDGetCommits:
			out := read[mlsapi.GetCommitsOutput](t, a.ok())
			decoded, n = &out, len(out.Commits)
		default:
			out := read[mlsapi.GetConvoOutput](t, a.ok())
			decoded, n = &out, 1
		}
		if want := string(decoded.AppendJSON(nil)); string(a.body) != want {
			t.Errorf("%s %v answers\n%s, want\n%s", test.nsid, test.params, a.body, want)
		}
		if n != test.want || (cursor != nil) != test.more {
			t.Errorf("%s %v answers %s", test.nsid, test.params, a.body)
		}
	}
}

// A reused buffer holds one answer at a time.
func TestListsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	var convos []*convo
	var want []string
	for i := range 4 {
		convos = append(convos, alice.create())
		for j := range 3 * i {
			alice.send(convos[i], fmt.Sprint(i, " ", j))
		}
		want = append(want, string(alice.get(mlsapi.NSIDGetMessages, "convoId", convos[i].id).ok()))
	}
	for range 20 {
		for i, a := range together(8,
			func(i int) answer { return alice.get(mlsapi.NSIDGetMessages, "convoId", convos[i%4].id) }) {
			if string(a.ok()) != want[i%4] {
				t.Fatalf("convo %d answers %s, want %s", i%4, a.body, want[i%4])
			}
		}
	}
}

// A page of convos is bounded in bytes, also if the members' DIDs are long. A reader that follows
// the pages gets every convo.
func TestConvoBytes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	const n, limit = 6, 8_000_000
	w := newWorld(t)
	alice := w.user()
	var want []string
	for range n {
		want = append([]string{alice.create().id}, want...)
	}
	w.exec(`INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		SELECT id, 'did:web:' || repeat('x', 2000) || n, 'member', now(), 0 FROM convos, generate_series(1, 999) AS n`)
	var got []string
	var pages []int
	for params := []string{"limit", "100"}; ; {
		a := alice.get(mlsapi.NSIDGetConvos, params...)
		out := read[mlsapi.GetConvosOutput](t, a.ok())
		if len(a.body) > limit || len(out.Conversations) == 0 {
			t.Fatalf("%d convos are listed in %d bytes", len(out.Conversations), len(a.body))
		}
		pages = append(pages, len(out.Conversations))
		for _, c := range out.Conversations {
			got = append(got, c.ID)
			if len(c.Members) != 1000 {
				t.Fatalf("a convo is listed with %d members", len(c.Members))
			}
		}
		if out.Cursor == nil {
			break
		}
		params = []string{"limit", "100", "cursor", *out.Cursor}
	}
	if !slices.Equal(got, want) || len(pages) != 2 {
		t.Fatalf("pages of %v list %v, want %v", pages, got, want)
	}
}
