package invariants_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/mlstest"
	"mlsd/operator/invariants"
)

// firstDay is the day of the events in the stream of validDatabase.
var firstDay = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// wantEveryWay checks a database in every way that reads all of it. Each must find what the check of
// everything has found.
func wantEveryWay(t *testing.T, db *pgxpool.Pool, all []string) {
	t.Helper()
	ctx := t.Context()
	ways := map[string]func() ([]string, error){
		"in small pages": func() ([]string, error) {
			return invariants.CheckPages(ctx, db, invariants.Cursor{}, 3, func(invariants.Cursor) {})
		},
		"since the first day": func() ([]string, error) {
			return invariants.CheckPages(ctx, db, invariants.From(firstDay.Add(12*time.Hour)), 1000, func(invariants.Cursor) {})
		},
		"a sample": func() ([]string, error) { return invariants.CheckSample(ctx, db, invariants.MaxSample) },
	}
	for way, check := range ways {
		found, err := check()
		if err != nil {
			t.Fatal(err)
		}
		want, got := broken(all), broken(found)
		if way == "a sample" { // which does not go through the stream
			for _, promise := range []string{"a dense stream", "an index with every message that shares a row of events"} {
				delete(want, promise)
				delete(got, promise)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-all +%s):\n%s", way, way, diff)
		}
	}
}

// broken returns the promises that violations name, with their convos. How many violations of a
// promise there are, and of which entries they speak, can depend on the pages.
func broken(violations []string) map[string]bool {
	promises := map[string]bool{}
	for _, text := range violations {
		parts := strings.SplitN(text, ": ", 3)
		if !strings.HasPrefix(text, "convo ") {
			parts = parts[:1]
		}
		promises[strings.Join(parts[:min(len(parts), 2)], ": ")] = true
	}
	return promises
}

// A check of what has changed since a time finds what is wrong with the entries since, and with the
// convos that have changed. It does not look at other convos, or at older entries.
func TestChangedSince(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	since := time.Now().Add(-time.Hour)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`
		DO $$
		BEGIN
			EXECUTE format('CREATE TABLE events_today PARTITION OF events FOR VALUES FROM (%L) TO (%L)', current_date,
				current_date + 1);
			UPDATE events SET day = current_date;
			UPDATE event_days SET day = current_date;
		END
		$$`)
	exec(`UPDATE messages SET created_at = created_at - interval '2 hours' WHERE seq <= 2 OR convo_id = $1`, ids[1])
	exec(`UPDATE convos SET created_at = now() - interval '3 hours', last_message_at = now() - interval '2 hours'`)
	exec(`UPDATE members SET left_at = now() - interval '2 hours' WHERE left_at IS NOT NULL`)
	exec(`UPDATE messages SET body = 'garbage'`)
	exec(`UPDATE members SET cursor_seq = 99`)
	restore := keep(t, db)
	// The first convo's newest entry is new, and is no message for last_message_at.
	first, second := "convo "+ids[0].String(), "convo "+ids[1].String()
	ofFirst := []string{first + ": log entry 3", first + ": log entry 4", first + ": positions within the log"}
	for _, c := range []struct {
		change  string // of the second convo
		changed bool
	}{
		{`SELECT $1::uuid`, false},
		{`UPDATE convos SET created_at = now() WHERE id = $1`, true},
		{`UPDATE convos SET last_message_at = now() WHERE id = $1`, true},
		{`UPDATE convos SET closed_at = now() WHERE id = $1`, true},
		{`UPDATE members SET left_at = now() WHERE convo_id = $1 AND left_at IS NOT NULL`, true},
	} {
		exec(c.change, ids[1])
		var end invariants.Cursor
		found, err := invariants.CheckPages(t.Context(), db, invariants.From(since), 1000,
			func(at invariants.Cursor) { end = at })
		if err != nil {
			t.Fatal(err)
		}
		want, convos := map[string]bool{}, int64(1)
		for _, text := range ofFirst {
			want[text] = true
		}
		if c.changed {
			want[second+": positions within the log"], convos = true, 2
		}
		if diff := cmp.Diff(want, broken(found)); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", c.change, diff)
		}
		if end.Convos != convos || end.Entries != 2 {
			t.Errorf("after %s: %s", c.change, end.Checked())
		}
		restore(t)
	}
}

// A check that is resumed after each page verifies each convo, entry, person and event once, also
// while convos, entries and people are added. No page has more than its size.
func TestResumedCheck(t *testing.T) {
	t.Parallel()
	db, _ := validDatabase(t)
	if _, err := db.Exec(t.Context(), `UPDATE members SET cursor_seq = 99`); err != nil {
		t.Fatal(err)
	}
	count := func(sql string) (n int64) {
		t.Helper()
		if err := db.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, err := db.Exec(t.Context(), `ANALYZE convos`); err != nil {
		t.Fatal(err)
	}
	const size = 2
	var pages, added int
	var before invariants.Cursor
	found, err := invariants.CheckPages(t.Context(), db, invariants.Cursor{}, size, func(at invariants.Cursor) {
		if pages++; at.Entries-before.Entries > size || at.Convos-before.Convos > 1 || at.People-before.People > 1 ||
			at.Events-before.Events > size {
			t.Errorf("page %d: %s, before %s", pages, at.Checked(), before.Checked())
		}
		if at.Convos > before.Convos && added < 3 {
			p := people{mlstest.NewDevice(t, alice.String()), mlstest.NewDevice(t, bob.String()),
				mlstest.NewDevice(t, carol.String())}
			added++
			id := p.makeConvo(t, db, fmt.Sprintf("added %d", added))
			if _, err := db.Exec(t.Context(), `UPDATE members SET cursor_seq = 99 WHERE convo_id = $1`, id); err != nil {
				t.Error(err)
			}
		}
		if pages == 1 && at.Checked() != "0 of about 2 convos, 0 entries, 0 people, 0 rows of events" {
			t.Errorf("after the first page: %s", at.Checked())
		}
		before = at
	})
	if err != nil {
		t.Fatal(err)
	}
	if before.Convos != count(`SELECT count(*) FROM convos`) || before.Entries != count(`SELECT count(*) FROM messages`) ||
		before.Events != count(`SELECT count(*) FROM events`) || before.People != 3 || before.Convos != 5 {
		t.Errorf("%s", before.Checked())
	}
	times := map[string]int{}
	for _, text := range found {
		times[strings.TrimPrefix(text, "convo ")[:len(uuid.Nil.String())]]++
	}
	for convo, n := range times {
		if n != 3 { // alice, bob and carol
			t.Errorf("convo %s: %d violations", convo, n)
		}
	}
	if len(times) != 5 {
		t.Errorf("violations of %d convos: %q", len(times), found)
	}
}

// The text of a cursor is that cursor. Other texts are refused.
func TestCursorText(t *testing.T) {
	t.Parallel()
	for _, c := range []invariants.Cursor{{}, invariants.From(time.Date(2026, 11, 22, 10, 15, 0, 0, time.UTC)),
		{Stage: 1, Convo: uuid.New(), Seq: 7, Entries: 9}} {
		if got, err := invariants.ParseCursor(c.String()); err != nil || got != c {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
	for _, text := range []string{"x", "e30=", "W10", "eyJzdGFnZSI6LTF9"} {
		if got, err := invariants.ParseCursor(text); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// A sample has as many convos as it was asked for, and no more.
func TestSampleIsBounded(t *testing.T) {
	t.Parallel()
	db, ids := validDatabase(t)
	if _, err := db.Exec(t.Context(), `UPDATE members SET cursor_seq = 99`); err != nil {
		t.Fatal(err)
	}
	for n, want := range []int{0, 1, 2, 2} {
		found, err := invariants.CheckSample(t.Context(), db, n)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(broken(found)); got != want {
			t.Errorf("a sample of %d of %d convos has found %d: %q", n, len(ids), got, found)
		}
	}
}
