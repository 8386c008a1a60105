package api_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
	"mlsd/internal/standby/standbytest"
)

// withStandby gives a world's database a standby.
func withStandby(w *world) { w.servers = pgtest.NewPair(w.t) }

// reader boots a node that reads from the standby, and returns it once it does.
func (w *world) reader() *api.Server {
	w.t.Helper()
	w.reads = standbytest.Reads(w.t, w.db, w.servers)
	return w.boot()
}

// A node reads from one standby: which follows, which is behind, and which is lost in the end.
func TestStandby(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withStandby)
	node := w.reader()
	t.Run("follows", func(t *testing.T) { w.within(t).readsFromStandby(node) })
	t.Run("is behind", func(t *testing.T) { w.within(t).standbyBehind(node) })
	t.Run("is lost during pages", func(t *testing.T) { w.within(t).standbyIsLostDuringPages(node) })
}

// readsFromStandby: every method that may read from a standby answers as from the primary, and reads
// from the standby.
func (w *world) readsFromStandby(node *api.Server) {
	t := w.t
	alice, bob, carol := w.user(), w.user(), w.user()
	alice.publish()
	c := alice.create(bob)
	for _, body := range []string{"one", "two", "three"} {
		alice.send(c, body)
	}
	alice.add(c, carol)
	alice.blocks(w.user())
	registry := prometheus.NewRegistry()
	w.reads.Register(registry)
	for nsid, params := range map[string][]string{
		mlsapi.NSIDGetMessages:        {"convoId", c.id},
		mlsapi.NSIDGetCommits:         {"convoId", c.id, "fromEpoch", "1"},
		mlsapi.NSIDGetConvo:           {"convoId", c.id},
		mlsapi.NSIDGetConvos:          nil,
		mlsapi.NSIDGetGroupInfo:       {"convoId", c.id},
		mlsapi.NSIDGetBlocks:          nil,
		mlsapi.NSIDGetKeyPackageStats: nil,
		mlsapi.NSIDExportMyData:       {"limit", "2"},
	} {
		want := alice.get(nsid, params...)
		deadline := time.Now().Add(30 * time.Second)
		for before := fromStandby(t, registry); fromStandby(t, registry) == before; { // it can be behind for a moment
			got := alice.on(node).get(nsid, params...)
			if got.status != want.status {
				t.Errorf("%s: status %d, from the primary %d", nsid, got.status, want.status)
			}
			if diff := cmp.Diff(string(want.body), string(got.body)); diff != "" {
				t.Errorf("%s: the primary's answer (-) and the standby's (+):\n%s", nsid, diff)
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s has not read from the standby", nsid)
			}
		}
	}
	for _, limit := range []int{2, 500} { // also what is in tables without WAL
		want, _ := alice.exported(limit)
		got, _ := alice.on(node).exported(limit)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the export of the primary (-) and of the standby (+):\n%s", diff)
		}
	}
}

// fromStandby returns how many reads a node has had from the standby.
func fromStandby(t testing.TB, registry *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "mlsd_reads_total" && m.GetLabel()[0].GetValue() == "standby" {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatal("there is no metric")
	return 0
}

// standbyBehind: a standby that is behind shows nobody what is not true any more. Each method answers
// as if there were none.
func (w *world) standbyBehind(node *api.Server) {
	t := w.t
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob)
	replay := pgtest.Session(t, w.servers.Standby)
	if _, err := replay.Exec(t.Context(), `SELECT pg_wal_replay_pause()`); err != nil {
		t.Fatal(err)
	}
	alice.send(c, "the last one that Bob may read")
	if page := bob.on(node).page(c); len(page.Messages) != 1 {
		t.Errorf("Bob reads %d entries", len(page.Messages))
	}
	alice.remove(c, bob)
	alice.send(c, "not for Bob")
	for nsid, params := range map[string][]string{
		mlsapi.NSIDGetMessages: nil, mlsapi.NSIDGetCommits: {"fromEpoch", "1"}, mlsapi.NSIDGetConvo: nil,
		mlsapi.NSIDGetGroupInfo: nil,
	} {
		bob.on(node).get(nsid, append(params, "convoId", c.id)...).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	}
	if convos := read[mlsapi.GetConvosOutput](t,
		bob.on(node).get(mlsapi.NSIDGetConvos).ok()); len(convos.Conversations) != 0 {
		t.Errorf("Bob sees %d convos", len(convos.Conversations))
	}
	alice.add(c, carol)
	carol.on(node).get(mlsapi.NSIDGetConvo, "convoId", c.id).ok()
	alice.blocks(carol)
	if out := read[mlsapi.GetBlocksOutput](t, alice.on(node).get(mlsapi.NSIDGetBlocks).ok()); len(out.Blocks) != 1 {
		t.Errorf("Alice has blocked %d people", len(out.Blocks))
	}
	if _, err := replay.Exec(t.Context(), `SELECT pg_wal_replay_resume()`); err != nil {
		t.Fatal(err)
	}
}

// standbyIsLostDuringPages: a read that begins on a standby and ends on the primary is answered once,
// and as a whole.
func (w *world) standbyIsLostDuringPages(node *api.Server) {
	t := w.t
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	const sent = 40
	for i := range int64(sent) {
		alice.send(c, itoa(i))
	}
	standbytest.Await(t, w.reads, true)
	var readers sync.WaitGroup
	stopped := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for after := 0; after < 5; {
				if page := bob.on(node).page(c); len(page.Messages) != sent {
					t.Errorf("a page of %d entries", len(page.Messages))
				}
				select {
				case <-stopped:
					after++
				default:
				}
			}
		})
	}
	w.servers.Stop(pgtest.StandbyServer)
	close(stopped)
	readers.Wait()
	standbytest.Await(t, w.reads, false)
}
