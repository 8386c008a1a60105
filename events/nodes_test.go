package events_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

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
