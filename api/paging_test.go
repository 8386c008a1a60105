package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/internal/mlstest"
)

// walk reads the log page by page to its end and returns the seqs of every page.
func (u *user) walk(c *convo, params ...string) (pages [][]int64) {
	u.w.t.Helper()
	var cursor *string
	for range 100 {
		p := append([]string{"convoId", c.id}, params...)
		if cursor != nil {
			p = append(p, "sinceMessage", *cursor)
		}
		out := read[mlsapi.GetMessagesOutput](u.w.t, u.get(mlsapi.NSIDGetMessages, p...).ok())
		seqs := []int64{}
		for _, m := range out.Messages {
			seqs = append(seqs, m.Seq)
		}
		pages = append(pages, seqs)
		if out.Cursor == nil {
			return pages
		}
		if len(out.Messages) == 0 || *out.Cursor != out.Messages[len(out.Messages)-1].ID {
			u.w.t.Fatalf("the cursor %s is not the last message's id", *out.Cursor)
		}
		cursor = out.Cursor
	}
	u.w.t.Fatal("the log does not end")
	return nil
}

// Pages of the log, with limits, cursors and kinds of messages.
func TestMessagePaging(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	c := alice.create(bob) // 1, 2: messages, 3: commit, 4, 5: messages, 6: commit, 7: message, 8: proposal
	for i := range 8 {
		switch i + 1 {
		case 3, 6:
			alice.add(c, w.user())
		case 8:
			in := alice.message(c, "propose")
			in.Ciphertext = mlstest.Proposal(c.group, c.epoch, "propose")
			alice.post(mlsapi.NSIDSendMessage, in).ok()
		default:
			alice.send(c, fmt.Sprint(i))
		}
	}
	for _, test := range []struct {
		params []string
		want   [][]int64
	}{
		{[]string{"messageType", "all"}, [][]int64{{1, 2, 3, 4, 5, 6, 7, 8}}},
		{[]string{"messageType", "all", "limit", "8"}, [][]int64{{1, 2, 3, 4, 5, 6, 7, 8}}},
		{[]string{"messageType", "all", "limit", "7"}, [][]int64{{1, 2, 3, 4, 5, 6, 7}, {8}}},
		{[]string{"messageType", "all", "limit", "3"}, [][]int64{{1, 2, 3}, {4, 5, 6}, {7, 8}}},
		{[]string{"limit", "1"}, [][]int64{{1}, {2}, {4}, {5}, {7}, {8}}},
		{[]string{"limit", "2"}, [][]int64{{1, 2}, {4, 5}, {7, 8}}},
		{nil, [][]int64{{1, 2, 4, 5, 7, 8}}},
		{[]string{"messageType", "application"}, [][]int64{{1, 2, 4, 5, 7, 8}}},
		{[]string{"messageType", "commit"}, [][]int64{{3, 6}}},
		{[]string{"messageType", "commit", "limit", "1"}, [][]int64{{3}, {6}}},
		{[]string{"messageType", "all", "sinceSeq", "0"}, [][]int64{{1, 2, 3, 4, 5, 6, 7, 8}}},
		{[]string{"messageType", "all", "sinceSeq", "5"}, [][]int64{{6, 7, 8}}},
		{[]string{"sinceSeq", "5", "limit", "1"}, [][]int64{{7}, {8}}},
		{[]string{"sinceSeq", "8"}, [][]int64{{}}},
		{[]string{"sinceSeq", "9007199254740991"}, [][]int64{{}}},
		{[]string{"messageType", "commit", "sinceSeq", "6"}, [][]int64{{}}},
	} {
		if diff := cmp.Diff(test.want, bob.walk(c, test.params...)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", test.params, diff)
		}
	}
	all := bob.page(c, "messageType", "all").Messages
	other := alice.create(bob)
	foreign := alice.send(other, "elsewhere").MessageID
	near := uuid.MustParse(all[0].ID)
	near[0] ^= 1
	for _, bad := range []string{foreign, uuid.NewString(), near.String(), "x", "", c.id} {
		bob.get(mlsapi.NSIDGetMessages, "convoId", c.id, "sinceMessage", bad).fails(http.StatusBadRequest,
			mlsapi.ErrInvalidCursor)
	}
	for _, bad := range []string{"0", "101", "-1", "x"} {
		message := bob.get(mlsapi.NSIDGetMessages, "convoId", c.id, "limit", bad).fails(http.StatusBadRequest,
			"InvalidRequest")
		if !strings.Contains(message, "limit") {
			t.Errorf("limit=%s is refused with %q", bad, message)
		}
	}
	bob.get(mlsapi.NSIDGetMessages, "convoId", c.id, "messageType", "x").fails(http.StatusBadRequest, "InvalidRequest")
	bob.get(mlsapi.NSIDGetMessages, "convoId", c.id, "sinceSeq", "-1").fails(http.StatusBadRequest, "InvalidRequest")
}

// A PDS passes on answers below 10 MB, so a page is bounded in bytes. A reader that follows the
// pages gets every message.
func TestPageBytes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("volume")
	}
	const n, limit = 9, 8_000_000
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	body := strings.Repeat("x", 1<<20)
	for i := range n {
		alice.send(c, fmt.Sprint(body, i))
	}
	pages := alice.walk(c, "limit", "100")
	if len(pages) < 2 || len(slices.Concat(pages...)) != n {
		t.Fatalf("the pages hold %v", pages)
	}
	for i, seq := range slices.Concat(pages...) {
		if seq != int64(i+1) {
			t.Fatalf("the pages hold %v", pages)
		}
	}
	if a := alice.get(mlsapi.NSIDGetMessages, "convoId", c.id, "limit", "100"); len(a.ok()) > limit {
		t.Fatalf("a page has %d bytes", len(a.body))
	}

	alice.send(c, strings.Repeat("y", 9<<20)) // a message that is larger than a page has a page of its own
	alice.send(c, "last")
	if got := alice.walk(c, "sinceSeq", itoa(n-1)); !cmp.Equal(got, [][]int64{{n}, {n + 1}, {n + 2}}) {
		t.Fatalf("around a large message the pages hold %v", got)
	}

	bob := w.user() // removed again and again, to make commits
	alice.add(c, bob)
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	for i := range 8 {
		alice.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id, TargetDID: ptr(bob.did()),
			Commit: mlstest.Commit(c.group, c.epoch, fmt.Sprint(body[:1<<20-200], i))}).ok()
		c.epoch++
	}
	var epochs []int64
	for next, asked := int64(1), 0; next <= c.epoch; asked++ {
		a := alice.get(mlsapi.NSIDGetCommits, "convoId", c.id, "fromEpoch", itoa(next))
		out := read[mlsapi.GetCommitsOutput](t, a.ok())
		if len(a.body) > limit || len(out.Commits) == 0 || asked > 20 {
			t.Fatalf("from epoch %d there are %d commits in %d bytes", next, len(out.Commits), len(a.body))
		}
		for _, found := range out.Commits {
			epochs = append(epochs, found.Epoch)
		}
		next = epochs[len(epochs)-1] + 1
	}
	for i, epoch := range epochs {
		if epoch != int64(i+1) {
			t.Fatalf("the commits create the epochs %v", epochs)
		}
	}
}

// Convos come newest first, and no convo is missing or listed twice.
func TestConvoPaging(t *testing.T) {
	t.Parallel()
	const n = 7
	w := newWorld(t)
	alice, bob := w.user(), w.user()
	var want []string
	for range n {
		want = append([]string{alice.create(bob).id}, want...)
	}
	alice.create() // bob is not in it
	for _, limit := range []int{1, 2, 3, 6, 7, 8, 100} {
		var got []string
		params := []string{"limit", fmt.Sprint(limit)}
		for pages := 0; ; pages++ {
			out := read[mlsapi.GetConvosOutput](t, bob.get(mlsapi.NSIDGetConvos, params...).ok())
			for _, c := range out.Conversations {
				got = append(got, c.ID)
			}
			if len(out.Conversations) > limit || pages > n {
				t.Fatalf("limit %d: page %d has %d convos", limit, pages, len(out.Conversations))
			}
			if out.Cursor == nil {
				break
			}
			params = []string{"limit", fmt.Sprint(limit), "cursor", *out.Cursor}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("limit %d (-want +got):\n%s", limit, diff)
		}
	}
	for _, bad := range []string{"x", uuid.Nil.String(), ""} {
		bob.get(mlsapi.NSIDGetConvos, "cursor", bad).fails(http.StatusBadRequest, mlsapi.ErrInvalidCursor)
	}
	bob.get(mlsapi.NSIDGetConvos, "limit", "0").fails(http.StatusBadRequest, "InvalidRequest")
}
