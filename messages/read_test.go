package messages_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/messages"
	"mlsd/mls"
)

var all = []mls.ContentType{mls.ContentTypeApplication, mls.ContentTypeProposal, mls.ContentTypeCommit}

// TestPagesCoverTheLog: whatever the limit and the byte bound, following the pages reads every entry once and ends.
func TestPagesCoverTheLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	const n = 23
	for i := range n {
		f.append(t, f.draft(f.convos[0], alice, fmt.Sprint(i), string(make([]byte, 100*(i%7)))))
	}
	window := messages.Window{ConvoID: f.convos[0], First: 0, Last: n}
	for _, limit := range []int{1, 4, n, n + 5} {
		for _, maxBytes := range []int64{1, 700, 1 << 20} {
			var seqs []int64
			after := int64(0)
			for range n + 1 {
				page, more, err := messages.Read(t.Context(), f.db,
					messages.Page{Window: window, After: after, Limit: limit, MaxBytes: maxBytes, Kinds: all})
				if err != nil {
					t.Fatal(err)
				}
				if len(page) > limit {
					t.Fatalf("%d messages for a limit of %d", len(page), limit)
				}
				for _, m := range page {
					seqs = append(seqs, m.Seq)
				}
				if !more {
					break
				}
				if len(page) == 0 {
					t.Fatal("an empty page that is not the last")
				}
				after = page[len(page)-1].Seq
			}
			if len(seqs) != n || seqs[0] != 1 || seqs[n-1] != n {
				t.Fatalf("limit %d, %d bytes: read %v", limit, maxBytes, seqs)
			}
		}
	}
	if page, more, err := messages.Read(t.Context(), f.db, messages.Page{
		Window: messages.Window{ConvoID: f.convos[0], First: 5, Last: 7}, Limit: 50, MaxBytes: 1 << 20, Kinds: all,
	}); err != nil || more || len(page) != 3 {
		t.Fatalf("the window is not kept to: %d messages, more %v, %v", len(page), more, err)
	}
}

// TestMessageIDs: an id leads back to its seq, and no other convo's or made-up id does.
func TestMessageIDs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	seen := map[uuid.UUID]bool{}
	for i := range 5 {
		for _, c := range f.convos {
			r := f.append(t, f.draft(c, alice, fmt.Sprint(i), "x"))[0]
			if seen[r.ID] {
				t.Fatalf("id %s stands for two messages", r.ID)
			}
			seen[r.ID] = true
			if r.ID.Version() != 7 || r.ID.Variant() != uuid.RFC4122 {
				t.Fatalf("%s is not a UUIDv7", r.ID)
			}
			if sec, nsec := r.ID.Time().UnixTime(); !time.Unix(sec, nsec).Equal(r.At) {
				t.Fatalf("%s says %s, stored at %s", r.ID, time.Unix(sec, nsec), r.At)
			}
			window := messages.Window{ConvoID: c, Last: r.Seq}
			if seq, err := messages.SeqOf(t.Context(), f.db, window, r.ID); err != nil || seq != r.Seq {
				t.Fatalf("%s leads to %d, %v; want %d", r.ID, seq, err, r.Seq)
			}
			window.Last--
			if _, err := messages.SeqOf(t.Context(), f.db, window, r.ID); !errors.Is(err, messages.ErrInvalidCursor) {
				t.Fatalf("outside the window: %v", err)
			}
		}
	}
	r := f.append(t, f.draft(f.convos[0], alice, "last", "x"))[0]
	for _, w := range []messages.Window{{ConvoID: f.convos[1], Last: 1000}, {ConvoID: uuid.New(), Last: 1000}} {
		if _, err := messages.SeqOf(t.Context(), f.db, w, r.ID); !errors.Is(err, messages.ErrInvalidCursor) {
			t.Fatalf("another convo's id: %v", err)
		}
	}
	forged := r.ID
	forged[3]++ // another moment
	if _, err := messages.SeqOf(t.Context(), f.db, messages.Window{ConvoID: f.convos[0], Last: 1000}, forged); !errors.Is(err, messages.ErrInvalidCursor) {
		t.Fatalf("a forged id: %v", err)
	}
}

// TestPagesOfAYoungLog: a page costs what is on it, also while the planner knows nothing of a log that has just grown.
func TestPagesOfAYoungLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	const n = 20_000
	convo := f.convos[0]
	tx, err := f.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	grow := func(from, to int) {
		t.Helper()
		_, err := tx.Exec(t.Context(), `
			INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
			SELECT $1, n, CASE n % 4 WHEN 0 THEN 3 ELSE 1 END, 'did:plc:alice', n, '', n::text, '', now() FROM generate_series($2::bigint, $3::bigint) AS n`,
			convo, from, to)
		if err != nil {
			t.Fatal(err)
		}
	}
	touched := func() (rows int64) {
		t.Helper()
		err := tx.QueryRow(t.Context(), `
			SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'messages'`).Scan(&rows)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	grow(1, 20)
	for _, size := range []int{20, n} {
		if size == n {
			grow(21, n)
		}
		window := messages.Window{ConvoID: convo, Last: int64(size)}
		for _, after := range []int64{0, int64(size) / 2, int64(size) - 10} {
			for range 6 { // until a plan is kept
				before := touched()
				page, _, err := messages.Read(t.Context(), tx, messages.Page{Window: window, After: after, Limit: 50, MaxBytes: 1 << 20, Kinds: all[:1]})
				if err != nil || len(page) == 0 {
					t.Fatalf("%d messages, %v", len(page), err)
				}
				if rows := touched() - before; rows > 400 {
					t.Fatalf("a page behind %d of %d touches %d rows", after, size, rows)
				}
				before = touched()
				commits, err := messages.Commits(t.Context(), tx, window, after, int64(size), 50, 1<<20)
				if err != nil || len(commits) == 0 {
					t.Fatalf("%d commits, %v", len(commits), err)
				}
				if rows := touched() - before; rows > 400 {
					t.Fatalf("commits behind %d of %d touch %d rows", after, size, rows)
				}
			}
		}
	}
}
