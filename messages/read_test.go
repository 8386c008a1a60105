package messages_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/messages"
)

// readPage reads p, for alice unless p names the reader.
func readPage(t *testing.T, db pgpool.Queryer, p messages.Page) (seqs []int64, more bool, err error) {
	t.Helper()
	if p.Reader == "" {
		p.Reader = alice
	}
	if p.Limit == 0 {
		p.Limit, p.MaxBytes = 50, 1<<20
	}
	if p.SmallBytes == 0 {
		p.SmallBytes = p.MaxBytes
	}
	end, err := messages.Read(t.Context(), db, p, func(m *messages.Message) bool {
		seqs = append(seqs, m.Seq)
		return true
	})
	return seqs, end.More, err
}

// H2: a page asks before it reads more than SmallBytes, and has no connection meanwhile.
func TestLargePagesAsk(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	for i, size := range []int{100, 100, 20_000, 100, 30_000} {
		f.append(t, f.draft(f.convos[0], alice, fmt.Sprint(i), strings.Repeat("x", size)))
	}
	refused := errors.New("no place")
	for _, test := range []struct {
		after, small, allowed int64
		err                   error
		want                  []int64
		asked                 int
	}{
		{0, 1 << 20, 1 << 20, nil, []int64{1, 2, 3, 4, 5}, 0},
		{0, 10_000, 1 << 20, nil, []int64{1, 2, 3, 4, 5}, 1},
		{0, 10_000, 25_000, nil, []int64{1, 2, 3, 4}, 1},
		{0, 10_000, 0, nil, []int64{1, 2}, 1},
		{2, 10_000, 0, nil, []int64{3}, 1}, // the first comes even if it is too large
		{0, 10_000, 0, refused, nil, 1},
		{3, 10_000, 1 << 20, nil, []int64{4, 5}, 1},
	} {
		asked := 0
		page := messages.Page{ConvoID: f.convos[0], After: test.after, Limit: 10, MaxBytes: 1 << 20, SmallBytes: test.small,
			Entries: messages.Everything}
		page.Large = func() (int64, error) {
			asked++
			if n := f.db.Stat().AcquiredConns(); n != 0 {
				t.Errorf("%d connections are in use", n)
			}
			return test.allowed, test.err
		}
		seqs, more, err := readPage(t, f.db, page)
		if test.err != nil {
			seqs = nil // the caller drops them
		}
		wantMore := test.err == nil && test.want[len(test.want)-1] < 5
		if !errors.Is(err, test.err) || !slices.Equal(seqs, test.want) || asked != test.asked || more != wantMore {
			t.Errorf("%+v: read %v, more %t, asked %d times: %v", test, seqs, more, asked, err)
		}
	}
}

// TestPagesCoverTheLog: with any limit and any byte bound, a reader that follows the pages gets
// every entry once.
func TestPagesCoverTheLog(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	const n = 23
	for i := range n {
		f.append(t, f.draft(f.convos[0], alice, fmt.Sprint(i), string(make([]byte, 100*(i%7)))))
	}
	for _, limit := range []int{1, 4, n, n + 5} {
		for _, maxBytes := range []int64{1, 700, 5000, 1 << 20} {
			var seqs []int64
			after := int64(0)
			for range n + 1 {
				page, more, err := readPage(t, f.db,
					messages.Page{ConvoID: f.convos[0], After: after, Limit: limit, MaxBytes: maxBytes, Entries: messages.Everything})
				if err != nil {
					t.Fatal(err)
				}
				if len(page) > limit {
					t.Fatalf("%d messages for a limit of %d", len(page), limit)
				}
				seqs = append(seqs, page...)
				if !more {
					break
				}
				if len(page) == 0 {
					t.Fatal("an empty page that is not the last")
				}
				after = page[len(page)-1]
			}
			if len(seqs) != n || seqs[0] != 1 || seqs[n-1] != n {
				t.Fatalf("limit %d, %d bytes: read %v", limit, maxBytes, seqs)
			}
		}
	}
}

// TestPagesOfMixedSizes: small and large bodies come in order, and as many as the bounds allow.
func TestPagesOfMixedSizes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	sizes := []int{100, 200, 9000, 300, 12_000, 400, 50, 30_000, 70, 80}
	bodies := map[int64]string{}
	for i, size := range sizes {
		d := f.draft(f.convos[0], alice, fmt.Sprint(i), strings.Repeat("x", size))
		bodies[f.append(t, d)[0].Seq] = string(d.Body)
	}
	for _, test := range []struct {
		after int64
		limit int
		fits  []int64 // MaxBytes is the size of these bodies
		less  int64   // bytes less than that
		want  []int64
		more  bool
	}{
		{0, 10, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, false},
		{0, 10, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 1, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}, true},
		{0, 9, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}, true},
		{0, 10, []int64{1, 2, 3}, 0, []int64{1, 2, 3}, true},
		{0, 10, []int64{1, 2, 3}, 1, []int64{1, 2}, true},
		{0, 10, []int64{1, 2, 3, 4, 5}, 0, []int64{1, 2, 3, 4, 5}, true},
		{0, 10, []int64{1, 2, 3, 4, 5}, 1, []int64{1, 2, 3, 4}, true},
		{0, 3, []int64{1, 2, 3, 8}, 0, []int64{1, 2, 3}, true},
		{0, 2, []int64{1, 2, 3, 8}, 0, []int64{1, 2}, true},
		{2, 10, nil, 0, []int64{3}, true}, // the first comes even if it is too large
		{2, 1, nil, 0, []int64{3}, true},
		{3, 10, []int64{4, 1}, 0, []int64{4}, true},
		{7, 10, []int64{8, 9, 10}, 0, []int64{8, 9, 10}, false},
		{7, 10, []int64{8, 9, 10}, 1, []int64{8, 9}, true},
		{7, 10, nil, 0, []int64{8}, true},
		{9, 1, nil, 0, []int64{10}, false},
		{10, 1, nil, 0, nil, false},
	} {
		var seqs []int64
		page := messages.Page{ConvoID: f.convos[0], Reader: bob, After: test.after, Limit: test.limit, MaxBytes: -test.less,
			Entries: messages.Everything}
		for _, seq := range test.fits {
			page.MaxBytes += int64(len(bodies[seq]))
		}
		page.SmallBytes = page.MaxBytes
		end, err := messages.Read(t.Context(), f.db, page, func(m *messages.Message) bool {
			if string(m.Body) != bodies[m.Seq] || m.Sender != alice {
				t.Errorf("%d is not what %s has sent", m.Seq, m.Sender)
			}
			seqs = append(seqs, m.Seq)
			return true
		})
		if err != nil || !slices.Equal(seqs, test.want) || end.More != test.more || end.LastSeq != int64(len(sizes)) {
			t.Errorf("%+v: read %v, %+v, %v", test, seqs, end, err)
		}
	}
	for n := range 5 { // the reader ends the page after n
		var seqs []int64
		end, err := messages.Read(t.Context(), f.db,
			messages.Page{ConvoID: f.convos[0], Reader: bob, Limit: 10, MaxBytes: 1 << 20, SmallBytes: 1 << 20,
				Entries: messages.Everything}, func(m *messages.Message) bool {
				if len(seqs) == n+1 {
					return false
				}
				seqs = append(seqs, m.Seq)
				return true
			})
		if err != nil || len(seqs) != n+1 || !end.More {
			t.Errorf("of %d entries there are %v, %+v, %v", n+1, seqs, end, err)
		}
	}
}

// failing is a database whose answers end with an error after some rows.
type failing struct {
	pgpool.Queryer
	after int
}

var errBroken = errors.New("the connection is gone")

func (f failing) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := f.Queryer.Query(ctx, sql, args...)
	return &failingRows{rows, f.after}, err
}

type failingRows struct {
	pgx.Rows
	left int
}

func (r *failingRows) Next() bool {
	r.left--
	return r.left >= 0 && r.Rows.Next()
}

func (r *failingRows) Err() error {
	if r.left < 0 {
		return errBroken
	}
	return r.Rows.Err()
}

// TestBrokenPage: a page that breaks off is an error and not a short page.
func TestBrokenPage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	for i := range 5 {
		f.append(t, f.draft(f.convos[0], alice, fmt.Sprint(i), "x"))
	}
	page := messages.Page{ConvoID: f.convos[0], Entries: messages.Everything}
	for after := range 5 {
		if _, more, err := readPage(t, failing{f.db, after}, page); !errors.Is(err, errBroken) || more {
			t.Errorf("broken off after %d: %v, %v", after, more, err)
		}
	}
}

// TestWhoReads: a member reads from where it joined. Others read nothing, and do not learn which
// convos exist.
func TestWhoReads(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	var last uuid.UUID
	for i := range 7 {
		last = f.append(t, f.draft(f.convos[0], alice, fmt.Sprint(i), "x"))[0].ID
	}
	if _, err := f.db.Exec(t.Context(), `UPDATE members SET joined_seq = 5 WHERE convo_id = $1 AND did = $2`, f.convos[0],
		bob); err != nil {
		t.Fatal(err)
	}
	forged := last
	forged[0] ^= 1
	for _, behind := range []*uuid.UUID{nil, &last, &forged, {}} {
		for _, after := range []int64{0, 6, 1 << 53} {
			page := messages.Page{ConvoID: f.convos[0], After: after, Behind: behind, Entries: messages.Everything}
			want := map[syntax.DID]error{alice: nil, bob: nil, carol: messages.ErrNotMember, mallory: messages.ErrConvoNotFound}
			if behind != nil && *behind != last {
				want[alice], want[bob] = messages.ErrInvalidCursor, messages.ErrInvalidCursor
			}
			for reader, want := range want {
				page.Reader = reader
				got, _, err := readPage(t, f.db, page)
				if err != want || err != nil && len(got) > 0 {
					t.Errorf("%s behind %v and %d: %v, %v; want %v", reader, behind, after, got, err, want)
				}
			}
			page.ConvoID, page.Reader = uuid.New(), alice
			if got, _, err := readPage(t, f.db, page); err != messages.ErrConvoNotFound {
				t.Errorf("no convo: %v, %v", got, err)
			}
		}
	}
	got, more, err := readPage(t, f.db, messages.Page{ConvoID: f.convos[0], Reader: bob, Entries: messages.Everything})
	if err != nil || more || len(got) != 3 || got[0] != 5 {
		t.Errorf("bob, who has joined with 5, reads %v, %v", got, err)
	}
}

// TestMessageIDs: the seq of a message is found by its id. The ids of other convos and invented ids
// are refused.
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
			f.append(t, f.draft(c, alice, fmt.Sprint("behind ", i), "x"))
			page := messages.Page{ConvoID: c, Behind: &r.ID, Limit: 1, MaxBytes: 1, Entries: messages.Everything}
			if got, _, err := readPage(t, f.db, page); err != nil || !slices.Equal(got, []int64{r.Seq + 1}) {
				t.Fatalf("%s leads to %v, %v; want what follows %d", r.ID, got, err, r.Seq)
			}
		}
	}
	r := f.append(t, f.draft(f.convos[0], alice, "last", "x"))[0]
	refused := func(page messages.Page, id uuid.UUID) {
		t.Helper()
		page.Behind, page.Entries = &id, messages.Everything
		if _, _, err := readPage(t, f.db, page); !errors.Is(err, messages.ErrInvalidCursor) {
			t.Fatalf("%s: %v", id, err)
		}
	}
	refused(messages.Page{ConvoID: f.convos[1]}, r.ID) // another convo's
	forged := r.ID
	forged[3]++ // another time
	refused(messages.Page{ConvoID: f.convos[0]}, forged)
	ahead := r.ID
	ahead[15]++ // a message that does not exist yet
	refused(messages.Page{ConvoID: f.convos[0]}, ahead)
}

// TestPagesOfAYoungLog: the cost of a page depends on its messages only, even while the planner has
// no statistics of a log that has just grown.
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
			SELECT $1, n, CASE n % 4 WHEN 0 THEN 3 ELSE 1 END, 'did:plc:alice', n, '', n::text, '', now() FROM
				generate_series($2::bigint, $3::bigint) AS n`,
			convo, from, to)
		if err == nil {
			_, err = tx.Exec(t.Context(), `UPDATE convos SET last_seq = $2 WHERE id = $1`, convo, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	touched := func() (rows int64) {
		t.Helper()
		err := tx.QueryRow(t.Context(), `
			SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname =
				'messages'`).Scan(&rows)
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
			for range 6 { // until the driver keeps a plan
				for selection, most := range map[messages.Selection]int64{
					messages.Everything: 51, messages.NoCommits: 51 * 4 / 3, messages.CommitsOnly: 51 + 1,
				} {
					// with -1000 every body is too large, and the other statement reads it
					for _, maxBytes := range []int64{1 << 20, -1000} {
						before := touched()
						page, _, err := readPage(t, tx,
							messages.Page{ConvoID: convo, After: after, Limit: 50, MaxBytes: maxBytes, Entries: selection})
						if err != nil || len(page) == 0 {
							t.Fatalf("%d messages, %v", len(page), err)
						}
						if maxBytes < 0 {
							most = 2 * most
						}
						if rows := touched() - before; rows > most {
							t.Fatalf("a page of %s behind %d of %d touches %d rows", selection, after, size, rows)
						}
					}
				}
				before := touched()
				commits := 0
				err := messages.Commits(t.Context(), tx, window, after, int64(size), 50, 1<<20, func(*messages.Message) bool {
					commits++
					return true
				})
				if err != nil || commits == 0 {
					t.Fatalf("%d commits, %v", commits, err)
				}
				if rows := touched() - before; rows > 51 {
					t.Fatalf("commits behind %d of %d touch %d rows", after, size, rows)
				}
			}
		}
	}
}
