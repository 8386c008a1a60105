package convos_test

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/messages"
)

// fill appends n entries to a log, from senders in turns of length each. Each tenth turn
// is of proposals.
func fill(t *testing.T, db *pgxpool.Pool, convo uuid.UUID, n int, each int, senders ...syntax.DID) {
	t.Helper()
	_, err := db.Exec(t.Context(), `
		WITH c AS (UPDATE convos SET last_seq = last_seq + $2 WHERE id = $1 RETURNING last_seq - $2 AS behind)
		INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT $1, behind + i, CASE WHEN (i / $3) % 10 = 9 THEN 2 ELSE 1 END,
			($4::text[])[(i / $3) % cardinality($4::text[]) + 1], 1, '', behind + i, '', now() - interval '1 hour'
		FROM c, generate_series(1, $2::bigint) AS i`, convo, n, each, senders)
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := f.db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// list returns what List says of the unread messages of each convo, and keeps the counts.
func list(t *testing.T, db *pgxpool.Pool, cursors *convos.Cursors, reader syntax.DID) map[uuid.UUID]int64 {
	t.Helper()
	unread := map[uuid.UUID]int64{}
	_, counts, err := convos.List(t.Context(), db, reader, convos.All, uuid.Nil, 100, func(c *convos.Convo) bool {
		unread[c.ID] = c.Unread
		return true
	})
	if err == nil {
		err = cursors.Keep(t.Context(), reader, counts)
	}
	if err != nil {
		t.Fatal(err)
	}
	return unread
}

// The unread messages that List counts, from counts that it has kept, are those of a plain count,
// whatever happens between two calls: messages, moved cursors, expiry, a new invitation.
func TestUnreadIsAPlainCount(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 53))
			f := newFixture(t)
			cursors := convos.NewCursors(f.db, nil, notShown)
			kept := 0
			for step := range 60 {
				var last int64
				if err := f.db.QueryRow(t.Context(), `SELECT last_seq FROM convos WHERE id = $1`, f.id).Scan(&last); err != nil {
					t.Fatal(err)
				}
				switch random.IntN(8) {
				default:
					fill(t, f.db, f.id, 1+random.IntN(90), 1+random.IntN(60), alice, bob)
				case 0:
					if _, err := cursors.UpdateRead(t.Context(), f.id, bob, random.Int64N(last+1)); err != nil {
						t.Fatal(err)
					}
				case 1:
					sweeper := messages.NewSweeper(f.db, time.Hour, func(int64) {}, nil)
					f.exec(t, `UPDATE messages SET created_at = now() + interval '1 day' WHERE convo_id = $1 AND seq > $2`,
						f.id, last-random.Int64N(200))
					if _, err := sweeper.RunOnce(t.Context()); err != nil {
						t.Fatal(err)
					}
				case 2:
					f.exec(t, `UPDATE members SET joined_seq = $2, cursor_seq = $2 WHERE convo_id = $1 AND did = $3`,
						f.id, random.Int64N(last+1), bob)
				}
				for _, reader := range []syntax.DID{alice, bob} {
					var want int64
					err := f.db.QueryRow(t.Context(), `
						SELECT least(count(*), 100) FROM messages e JOIN members m USING (convo_id)
						WHERE convo_id = $1 AND did = $2 AND seq > cursor_seq AND seq > joined_seq AND kind = 1 AND sender_did <> $2`,
						f.id, reader).Scan(&want)
					if err != nil {
						t.Fatal(err)
					}
					// More entries than one call reads: the calls get nearer, and never beyond.
					var got int64
					for calls := 0; calls <= int(last/1000); calls++ {
						before := got
						if got = list(t, f.db, cursors, reader)[f.id]; got < before || got > want {
							t.Fatalf("step %d: %d unread messages of %s after %d, and there are %d", step, got, reader, before, want)
						}
					}
					if got != want {
						t.Fatalf("step %d: %d unread messages of %s, and there are %d", step, got, reader, want)
					}
				}
				var n int
				if err := f.db.QueryRow(t.Context(), `SELECT count(counted_from) FROM members`).Scan(&n); err != nil {
					t.Fatal(err)
				}
				kept += n
			}
			if kept == 0 {
				t.Error("no count was kept")
			}
		})
	}
}

// A reader who only sends reads its log once, a thousand entries with each call, and then no more
// of it, however long the log is. So does a reader who has 100 messages of others before it.
func TestCountedEntriesAreNotReadAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	cursors := convos.NewCursors(f.db, nil, notShown)
	fill(t, f.db, f.id, 3500, 1, alice)
	for _, c := range []struct {
		reader syntax.DID
		calls  []int64 // entries that each call reads
		unread int64
	}{
		{alice, []int64{900, 900, 900, 450, 0}, 0},
		{bob, []int64{100, 0, 0}, 100},
	} {
		for call, most := range c.calls {
			rows := rowsRead(t, f.db, c.reader)
			if unread := list(t, f.db, cursors, c.reader)[f.id]; unread != c.unread {
				t.Errorf("call %d of %s: %d unread messages", call, c.reader, unread)
			}
			if call == len(c.calls)-1 && rows != 0 || rows > 1000 || rows < most/2 {
				t.Errorf("call %d of %s reads %d entries", call, c.reader, rows)
			}
		}
	}
}

//go:embed convos.sql
var selectConvos string

// rowsRead returns how many log entries the statement of List reads.
func rowsRead(t *testing.T, db *pgxpool.Pool, reader syntax.DID) int64 {
	t.Helper()
	var plan []struct{ Plan planNode }
	err := db.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+withoutComments(selectConvos), pgx.QueryExecModeExec,
		reader, uuid.Nil, uuid.Max, 100, "all", 100, 1000).Scan(&plan)
	if err != nil {
		t.Fatal(err)
	}
	return int64(plan[0].Plan.of("messages"))
}

func withoutComments(sql string) string {
	at := strings.Index(sql, "SELECT")
	return sql[at:]
}

type planNode struct {
	Table   string  `json:"Relation Name"`
	Rows    float64 `json:"Actual Rows"`
	Loops   float64 `json:"Actual Loops"`
	Removed float64 `json:"Rows Removed by Filter"`
	Plans   []planNode
}

// of returns how many rows of a table the plan reads.
func (n planNode) of(table string) (rows float64) {
	if n.Table == table {
		rows = (n.Rows + n.Removed) * n.Loops
	}
	for _, below := range n.Plans {
		rows += below.of(table)
	}
	return rows
}

//go:embed standing.sql
var readStanding string

// What is known of a sender of many messages who was added again does not cost more than the entries
// since then, and of a person with few messages not more than these.
func TestStandingReadsFewEntries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	fill(t, f.db, f.id, 20_000, 1, bob)
	f.exec(t, `UPDATE members SET joined_seq = 20001, cursor_seq = 20001 WHERE did = $1`, bob)
	fill(t, f.db, f.id, 500, 1, alice)
	f.exec(t, `VACUUM ANALYZE messages`)
	standing := func(did syntax.DID) (joined bool, rows float64) {
		t.Helper()
		var plan []struct{ Plan planNode }
		who := []string{did.String()}
		err := f.db.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+withoutComments(readStanding),
			pgx.QueryExecModeExec, f.id, who).Scan(&plan)
		if err == nil {
			err = f.db.QueryRow(t.Context(), `SELECT joined FROM (`+readStanding+`) s`, f.id, who).Scan(&joined)
		}
		if err != nil {
			t.Fatal(err)
		}
		return joined, plan[0].Plan.of("messages")
	}
	if joined, rows := standing(bob); joined || rows > 1600 || rows < 1000 {
		t.Errorf("joined: %t; %v entries were read", joined, rows)
	}
	fill(t, f.db, f.id, 1, 1, bob)
	if joined, rows := standing(bob); !joined || rows > 1600 {
		t.Errorf("joined: %t; %v entries were read", joined, rows)
	}
	if joined, rows := standing(alice); !joined || rows > 600 {
		t.Errorf("alice joined: %t; %v entries were read", joined, rows)
	}
}
