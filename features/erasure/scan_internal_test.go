package erasure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/internal/tombstone"
	"mlsd/people/accounts"
)

// shelf is a table whose blocks have one row each, and erasures that read it.
type shelf struct {
	t  *testing.T
	db *pgxpool.Pool
	w  *Worker

	mu      sync.Mutex // guards what follows
	batches int
	// erased are the rows that were changed, by account.
	erased map[syntax.DID][]int
	// each, if not nil, is called before the rows of an account are changed.
	each func(did syntax.DID) error
}

// newShelf makes a table in which each of so many rows names two accounts of a number.
func newShelf(t *testing.T, blocks, people int) *shelf {
	t.Helper()
	s := &shelf{t: t, db: pgtest.Database(t), erased: map[syntax.DID][]int{}}
	store := accounts.NewStore(0, convos.HandOver)
	s.w = NewWorker(Config{
		DB: s.db, Log: slog.New(slog.DiscardHandler), Jobs: &Store{accounts: store}, Accounts: store,
	})
	s.w.blocks, s.w.steps = 1, []step{{name: "the scan", scan: &scan{"shelf", s.erase}}}
	s.exec(`CREATE TABLE shelf (n integer NOT NULL, names text NOT NULL) WITH (autovacuum_enabled = off)`)
	s.exec(`ALTER TABLE shelf ALTER names SET STORAGE PLAIN`)
	for n := range blocks {
		s.exec(`INSERT INTO shelf VALUES ($1, $2 || repeat(' ', 5000))`, n,
			fmt.Sprintf("%s and %s.", person(n%people), person((n+1)%people)))
	}
	return s
}

func person(n int) syntax.DID { return syntax.DID(fmt.Sprintf("did:plc:person%04d", n)) }

func (s *shelf) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.db.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

// begin begins the erasure of an account.
func (s *shelf) begin(did syntax.DID) {
	s.t.Helper()
	err := pgx.BeginFunc(s.t.Context(), s.db, func(tx pgx.Tx) error {
		_, _, err := s.w.cfg.Jobs.Begin(s.t.Context(), tx, did, ByAccount, "")
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shelf) erase(ctx context.Context, tx pgx.Tx, p tombstone.Person, b pgpool.Blocks) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.each != nil {
		if err := s.each(p.DID); err != nil {
			return 0, err
		}
	}
	rows, err := tx.Query(ctx, `SELECT n FROM shelf WHERE ctid >= $1::tid AND ctid < $2::tid AND strpos(names, $3) > 0`,
		b.From, b.To, p.DID.String())
	if err != nil {
		return 0, err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	s.erased[p.DID] = append(s.erased[p.DID], found...)
	return int64(len(found)), err
}

// want fails the test unless every row of each account was changed once.
func (s *shelf) want(blocks, people int) {
	s.t.Helper()
	for n := range people {
		var want []int
		for row := range blocks {
			if row%people == n || (row+1)%people == n {
				want = append(want, row)
			}
		}
		got := s.erased[person(n)]
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			s.t.Errorf("rows of person %d (-want +got):\n%s", n, diff)
		}
	}
}

// Many erasures read a table together: with each batch one part, for all of them. One that begins
// later reads every part too.
func TestErasuresReadTogether(t *testing.T) {
	t.Parallel()
	const blocks, people = 40, 8
	s := newShelf(t, blocks, people)
	for n := range 4 {
		s.begin(person(n))
	}
	s.w.cfg.Wake = func() {
		if s.batches++; s.batches == 15 {
			for n := 4; n < people; n++ {
				s.begin(person(n))
			}
		}
	}
	if err := s.w.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	// One batch for each block, again one for each of the 15 that some had missed, and each joins with
	// one of its own.
	if most := blocks + 15 + people; s.batches > most {
		t.Errorf("%d batches, want %d at most", s.batches, most)
	}
	s.want(blocks, people)
}

// Nodes that work at once read every part for every account, each once.
func TestErasuresOnSeveralNodes(t *testing.T) {
	t.Parallel()
	const blocks, people = 30, 12
	s := newShelf(t, blocks, people)
	var nodes sync.WaitGroup
	for n := range people {
		s.begin(person(n))
		if n%4 == 0 {
			nodes.Go(func() {
				if err := s.w.RunOnce(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	nodes.Wait()
	if err := s.w.RunOnce(t.Context()); err != nil { // what has begun when the others had ended
		t.Error(err)
	}
	s.want(blocks, people)
}

// A job that fails does not stop those that read with it.
func TestOneOfManyErasuresFails(t *testing.T) {
	t.Parallel()
	const blocks, people = 20, 5
	s := newShelf(t, blocks, people)
	for n := range people {
		s.begin(person(n))
	}
	s.w.cfg.Wake = func() { s.batches++ }
	failure := errors.New("its rows are odd")
	s.each = func(did syntax.DID) error {
		if did == person(2) && s.batches > people { // they read together then
			return failure
		}
		return nil
	}
	if err := s.w.RunOnce(t.Context()); !errors.Is(err, failure) {
		t.Errorf("the round: %v", err)
	}
	var running []string
	if err := s.db.QueryRow(t.Context(),
		`SELECT array_agg(did || ' ' || failures) FROM erasures WHERE state = 'running'`).Scan(&running); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{person(2).String() + " 1"}, running); diff != "" {
		t.Errorf("running erasures and their failures (-want +got):\n%s", diff)
	}
}

// A lap ends where it began, also if tables have come or gone meanwhile.
func TestLap(t *testing.T) {
	t.Parallel()
	var end place
	for _, c := range []struct {
		name   string
		joined place
		next   []place // the last one ends it
	}{
		{"from the beginning", end, []place{{"a", 1}, {"b", 0}, {"b", 1}, end}},
		{"joined in the middle", place{"b", 1}, []place{{"b", 2}, end, {"a", 1}, {"b", 0}, {"b", 1}}},
		{"joined in a table that has gone", place{"b", 1}, []place{{"c", 0}, end, {"a", 1}, {"c", 0}}},
		{"joined in the last table, which has become shorter", place{"b", 7}, []place{end, {"a", 1}, {"b", 0}, end}},
		{"nothing is left", end, []place{end}},
	} {
		l := begin(c.joined)
		for i, next := range c.next {
			l = parseLap(l.String())
			if done := l.move(next); done != (i == len(c.next)-1) {
				t.Errorf("%s: at %v: %t", c.name, next, done)
			}
		}
	}
	if l := parseLap(""); l.begun {
		t.Errorf("no position: %+v", l)
	}
}

// What names a person, and what does not.
func TestNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	_, err := db.Exec(t.Context(), `CREATE TABLE shelf (a text, b bytea, c jsonb, d text[], e text COLLATE "C")`)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]bool{ // whether it names alice
		alice: true, "at://" + alice + "/app.bsky.feed.post/1": true, "by " + alice + ".": true,
		"(" + alice + "), did:plc:other": true,
		"did:plc:other " + alice:         true, "scope:" + alice: true, "did:plc:other:" + alice: true, "did: " + alice: true,
		alice + "x": false, alice + ".example": false, alice + ":8080": false, alice + "%3A": false,
		alice[:len(alice)-1]: false,
		alice[4:]:            false, "did:" + alice[8:]: false, "": false,
	}
	var want int64
	for text, named := range texts {
		for _, value := range []string{`(a) VALUES ($1)`, `(e) VALUES ($1)`,
			`(b) VALUES (convert_to($1, 'UTF8') || '\x00ff5c')`,
			`(c) VALUES (jsonb_build_object('x', ARRAY[$1]))`, `(d) VALUES (ARRAY['', $1])`} {
			if _, err := db.Exec(t.Context(), `INSERT INTO shelf `+value, text); err != nil {
				t.Fatal(err)
			}
			if named {
				want++
			}
		}
	}
	err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		columns, err := (&scan{table: "shelf"}).columns(t.Context(), tx)
		if err != nil {
			return err
		}
		b, next, err := part(t.Context(), tx, columns, place{}, batchBlocks)
		if err != nil || next != (place{}) {
			return fmt.Errorf("behind it is %v: %w", next, err)
		}
		got, err := named(t.Context(), tx, columns, b, []*job{
			{person: tombstone.Person{DID: alice}}, {person: tombstone.Person{DID: "did:plc:nobody"}},
		})
		if diff := cmp.Diff(map[string]int64{alice: want}, got); diff != "" {
			t.Errorf("rows that name somebody (-want +got):\n%s", diff)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
