package events_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/internal/pgtest"
	"mlsd/internal/worker"
)

func newPresence(t *testing.T, db *pgxpool.Pool) *events.Presence {
	t.Helper()
	return events.NewPresence(db, slog.New(slog.NewTextHandler(t.Output(), nil)))
}

func runOnce(t *testing.T, p *events.Presence) {
	t.Helper()
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// present returns the devices that are connected to nodes whose leases have not lapsed, and the
// number of those nodes for each.
func present(t *testing.T, db *pgxpool.Pool) map[string]int {
	t.Helper()
	rows, err := db.Query(t.Context(), `
		SELECT p.did || ' ' || p.device_id, count(*) FROM presence p JOIN nodes n ON n.id = p.node
		WHERE n.lease_expires_at > clock_timestamp() GROUP BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	var device string
	var nodes int
	_, err = pgx.ForEachRow(rows, []any{&device, &nodes}, func() error {
		found[device] = nodes
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// 5,000 devices can connect or disconnect at once, and the next write stores it. A device that does
// both between two writes changes nothing.
func TestPresenceBurst(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newPresence(t, db)
	each := func(do func(did syntax.DID, device string, resumed bool)) {
		for i := range 5000 {
			do(syntax.DID(fmt.Sprintf("did:plc:%d", i)), "phone", true)
		}
	}
	each(p.Connect)
	runOnce(t, p)
	if n := len(present(t, db)); n != 5000 {
		t.Fatalf("%d are connected", n)
	}
	each(p.Connect)
	each(p.Disconnect)
	runOnce(t, p)
	if n := len(present(t, db)); n != 5000 {
		t.Fatalf("%d are connected, each by another connection", n)
	}
	each(p.Disconnect)
	runOnce(t, p)
	if n := countRows(t, db, `SELECT count(*) FROM presence`); n != 0 {
		t.Fatalf("%d are left", n)
	}
}

// A node whose row is missing, or whose lease has lapsed, writes all its devices again.
func TestPresenceComesBack(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p, other := newPresence(t, db), newPresence(t, db)
	p.Connect("did:plc:alice", "phone", true)
	want := map[string]int{"did:plc:alice phone": 1}
	for name, lose := range map[string]func(){
		"it begins":          func() {},
		"its row is lost":    func() { runOnce(t, other); exec(t, db, `TRUNCATE nodes, presence`) },
		"it was swept":       func() { pgtest.Age(t, db, "nodes", 2*time.Minute); pgtest.Sweep(t, events.SweepNodes(db)) },
		"its lease was over": func() { pgtest.Age(t, db, "nodes", 20*time.Second) },
	} {
		lose()
		runOnce(t, p)
		runOnce(t, p)
		if diff := cmp.Diff(want, present(t, db)); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Connections begin and end at random on two nodes, while writes fail and rows are lost. Afterwards
// the tables match the connections.
func TestPresenceRaces(t *testing.T) {
	t.Parallel()
	const seed = 1
	pools := twoNodes(t)
	nodes := [2]*events.Presence{newPresence(t, pools[0]), newPresence(t, pools[1])}
	var mu sync.Mutex // guards counts
	var counts [2]map[string]int
	stop, stopped := make(chan struct{}), sync.WaitGroup{}
	for i, p := range nodes {
		counts[i] = map[string]int{}
		stopped.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(20*time.Millisecond))))
				if err := p.RunOnce(ctx); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				cancel()
				if random.IntN(20) == 0 {
					exec(t, pools[i], `DELETE FROM nodes`)
				}
			}
		})
	}
	var working sync.WaitGroup
	for g := range 8 {
		working.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(100+g)))
			type connection struct {
				node   int
				device string
			}
			var mine []connection
			for range 3000 {
				if n := len(mine); n > 0 && random.IntN(2) == 0 {
					last := random.IntN(n)
					c := mine[last]
					mine[last] = mine[n-1]
					mine = mine[:n-1]
					nodes[c.node].Disconnect("did:plc:alice", c.device, true)
					continue
				}
				c := connection{random.IntN(2), fmt.Sprint(random.IntN(40))}
				mine = append(mine, c)
				nodes[c.node].Connect("did:plc:alice", c.device, true)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, c := range mine {
				counts[c.node]["did:plc:alice "+c.device] = 1
			}
		})
	}
	working.Wait()
	close(stop)
	stopped.Wait()
	want := map[string]int{}
	for i, p := range nodes {
		runOnce(t, p)
		for d, n := range counts[i] {
			want[d] += n
		}
	}
	if diff := cmp.Diff(want, present(t, pools[0])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Run writes a change at once, not only at the next renewal. When it stops it deletes the rows.
func TestPresenceRun(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newPresence(t, db)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		p.Run(ctx, worker.NewRounds(worker.Clock{}), time.Hour)
		close(ended)
	}()
	p.Connect("did:plc:alice", "phone", true)
	until := func(want int) {
		t.Helper()
		for len(present(t, db)) != want {
			if t.Context().Err() != nil {
				t.Fatal("nothing is written")
			}
		}
	}
	until(1)
	p.Disconnect("did:plc:alice", "phone", true)
	until(0)
	p.Connect("did:plc:alice", "phone", true)
	until(1)
	stop()
	<-ended
	if n := countRows(t, db, `SELECT count(*) FROM nodes`) + countRows(t, db, `SELECT count(*) FROM presence`); n != 0 {
		t.Fatalf("%d rows are left", n)
	}
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Error(err)
	}
}
