package events_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/events"
	"mlsd/internal/pgtest"
)

// A node says which release it runs. A node whose lease has lapsed is not alive. A database without a
// schema has no nodes. Finding X9.
func TestLiveNodes(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	wantNodes := func(want ...events.Node) {
		t.Helper()
		got, err := events.LiveNodes(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(events.Node{}, "ID", "RenewedAt"), cmpopts.EquateEmpty(),
			cmpopts.SortSlices(func(a, b events.Node) bool { return a.Build < b.Build })); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for _, n := range got {
			if n.ID == uuid.Nil || time.Since(n.RenewedAt) > time.Minute {
				t.Errorf("%+v", n)
			}
		}
	}
	wantNodes()
	this := events.Release{Build: "abc", Schema: 24}
	p := events.NewPresence(db, slog.New(slog.NewTextHandler(t.Output(), nil)), events.Runs(this))
	if err := p.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantNodes(events.Node{Release: this})
	pgtest.Age(t, db, "nodes", 20*time.Second)
	wantNodes()
	exec(t, db, `DROP TABLE nodes CASCADE`)
	wantNodes()
}

// A step of the sequencer notifies other nodes of new events if there are any.
func TestStepNotifiesOtherNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log := slog.New(slog.DiscardHandler)
	this, other := events.NewPresence(w.db, log), events.NewPresence(w.db, log)
	seq := events.NewSequencer(events.SequencerConfig{
		DB: w.db, Log: log, Metrics: &counts{}, Retention: 7 * 24 * time.Hour, Moved: func(int64) {}, Node: this.Node,
	})
	t.Cleanup(seq.Resign)
	var notified int
	cfg := w.db.Config().ConnConfig
	cfg.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { notified++ }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `LISTEN mlsd_events`); err != nil {
		t.Fatal(err)
	}
	convo := w.convo(t, alice)
	for i, c := range []struct {
		joins *events.Presence
		want  int
	}{{this, 0}, {other, 1}} {
		if err := c.joins.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.say(t, convo, alice, 1)
		if moved, err := seq.Round(t.Context()); err != nil || !moved {
			t.Fatal(moved, err)
		}
		// A session gets its notifications before the answer to its next statement.
		if _, err := conn.Exec(t.Context(), `SELECT 1`); err != nil {
			t.Fatal(err)
		}
		if notified != c.want {
			t.Errorf("step %d: %d notifications, want %d", i, notified, c.want)
		}
	}
}
