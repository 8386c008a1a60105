package network

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// planned is a node of a plan.
type planned struct {
	Type  string  `json:"Node Type"`
	Index string  `json:"Index Name"`
	Rows  float64 `json:"Actual Rows"` // of one loop
	Loops float64 `json:"Actual Loops"`
	Plans []planned
}

// scans adds the rows that each index gives, and those of tables that are read without one.
func (p planned) scans(rows map[string]float64) {
	if p.Index != "" || p.Type == "Seq Scan" {
		rows[p.Index] += p.Rows * p.Loops
	}
	for _, child := range p.Plans {
		child.scans(rows)
	}
}

// Silent homes: however many homes have due jobs, a round reads a bounded number of them by index.
// A job that was never tried is among them, whether its home has answered before or not.
func TestDueIsBounded(t *testing.T) {
	t.Parallel()
	homes := 100_000
	if testing.Short() {
		homes = 10_000
	}
	db := pgtest.Database(t)
	insert := func(service, count string, args ...any) {
		t.Helper()
		if _, err := db.Exec(t.Context(), `
			INSERT INTO sent_invitations (id, did, ref, last_resort, service, device_id, cipher_suite, convo_id, inviter,
				epoch, domain, created_at, queued_at, attempts, next_attempt_at)
			SELECT gen_random_uuid(), 'did:web:p.example.com', int4send(n) || convert_to(`+service+`, 'UTF8'), false,
				'did:web:' || `+service+`, 'd', 1, gen_random_uuid(), 'did:web:mallory.example.com', 1, `+service+`,
				now(), now(), n % 3, now() - interval '1 minute'
			FROM generate_series(`+count+`) AS n`, args...); err != nil {
			t.Fatal(err)
		}
	}
	for n := 0; n < homes; n += 10_000 {
		insert(`'s' || n || '.example'`, `$1::int, $1 + 9999`, n)
	}
	insert(`'many.example'`, `1, 400`)
	if _, err := db.Exec(t.Context(), `ANALYZE sent_invitations`); err != nil {
		t.Fatal(err)
	}
	insert(`'answers.example'`, `2, 2`)
	insert(`'new.example'`, `0, 0`)
	if _, err := db.Exec(t.Context(), `
		UPDATE sent_invitations SET next_attempt_at = now() WHERE domain = 'new.example'`); err != nil {
		t.Fatal(err)
	}
	args := []any{perHome, []string{"s20000.example"}, []string{"answers.example"}, 2 * allCalls, newestJobs, drawnHomes}
	var plan []struct{ Plan planned }
	err := db.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+due, append(args, 0.5)...).Scan(&plan)
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]float64{}
	plan[0].Plan.scans(read)
	var rows float64
	for _, n := range read {
		rows += n
	}
	const most = newestJobs + 2*drawnHomes + perHome*(newestJobs+drawnHomes+1)
	if _, all := read[""]; all || rows == 0 || rows > most {
		t.Errorf("%v rows were read, want at most %d by index: %v", rows, most, read)
	}
	begun := time.Now()
	jobs, err := pgpool.Collect(t.Context(), db, pgx.RowToStructByPos[job], due, append(args, 0.9999)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d homes with due jobs: %v rows read, %s", homes, rows, time.Since(begun))
	found := map[string]int{}
	for _, j := range jobs {
		found[j.Home]++
	}
	if found["answers.example"] != 1 || found["new.example"] != 1 || found["many.example"] > perHome || len(found) < 64 {
		t.Errorf("a round has %d jobs of %d homes: %v", len(jobs), len(found), found)
	}
	if jobs[0].Home != "new.example" && jobs[1].Home != "new.example" {
		t.Errorf("the newest job of a new home is not the first: %s, %s", jobs[0].Home, jobs[1].Home)
	}
}
