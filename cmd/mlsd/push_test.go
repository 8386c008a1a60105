package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/mlsapi"
	"mlsd/features/push"
	"mlsd/idem"
	"mlsd/internal/await"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// pushKills is how often the server is killed at each step of a push: go test ./cmd/mlsd
// -run TestPushKilled -push.kills 50
var pushKills = flag.Int("push.kills", 3, "how often TestPushKilled kills the server at each step")

// device is the device of bob, a webhook that records its calls.
type device struct {
	*httptest.Server
	mu    sync.Mutex // guards the rest
	calls map[string]int
	block chan struct{} // if not nil, the next call is answered when it is closed
	came  chan string   // the keys of calls, in order
}

func newDevice(t *testing.T) *device {
	t.Helper()
	d := &device{calls: map[string]int{}, came: make(chan string, 1000)}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

// ServeHTTP implements http.Handler.
func (d *device) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var call struct{ Challenge string }
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
		rw.WriteHeader(http.StatusBadRequest)
		return
	}
	if call.Challenge != "" {
		if _, err := io.WriteString(rw, call.Challenge); err != nil {
			panic(err)
		}
		return
	}
	key := r.Header.Get("Idempotency-Key")
	d.mu.Lock()
	d.calls[key]++
	block := d.block
	d.block = nil
	d.mu.Unlock()
	d.came <- key
	if block != nil {
		<-block
	}
}

// heard returns how often the device was called with each key.
func (d *device) heard() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	heard := map[string]int{}
	for key, n := range d.calls {
		heard[key] = n
	}
	return heard
}

// pushWorld is a world in which bob gets pushes for alice's messages. Several servers can share its
// database.
type pushWorld struct {
	*world
	url    string
	db     *pgxpool.Pool
	device *device
	alice  *user
	convo  *convo
}

func newPushWorld(t *testing.T) (*pushWorld, *child) {
	t.Helper()
	w := &pushWorld{world: newWorld(t), url: pgtest.URL(t), device: newDevice(t)}
	var err error
	if w.db, err = pgpool.Open(t.Context(), w.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.db.Close)
	server := w.start()
	var bob *user
	w.alice, bob = w.user(), w.user()
	w.convo = w.alice.create(bob)
	// requests are not pushed
	bob.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: w.convo.id}).must().ok()
	url := w.device.URL + "/"
	bob.procedure(mlsapi.NSIDRegisterPushTarget,
		&mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: &url}).must().ok()
	return w, server
}

// start starts another server on the database and sends requests to it from now on.
func (w *pushWorld) start() *child {
	w.t.Helper()
	c := spawn(w.t, dataDir(w.t), "MLSD_PLC_URL="+w.plc.URL, "MLSD_DATABASE_URL="+w.url, "MLSD_ALLOW_LOOPBACK=true")
	w.use(c.admin, c.public)
	return c
}

// age ends every lease and makes every job due.
func (w *pushWorld) age() {
	w.t.Helper()
	pgtest.Age(w.t, w.db, "push_jobs", 2*time.Hour, "next_attempt_at")
	pgtest.Age(w.t, w.db, "idempotency_keys", time.Hour, "lease_expires_at")
}

func (w *pushWorld) count(sql string, args ...any) (n int) {
	w.t.Helper()
	if err := w.db.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// emptied waits until no job is left.
func (w *pushWorld) emptied() {
	w.t.Helper()
	await.Until(w.t, "everything is sent", func() bool {
		return w.count(`
			SELECT (SELECT count(*) FROM push_convos) +
				(SELECT count(*) FROM push_jobs WHERE state IN ('pending', 'sending'))`) == 0
	})
}

// The server is killed at every step from the message to the record of its push. Every job ends,
// and the device gets each at least once, with one key.
func TestPushKilled(t *testing.T) {
	t.Parallel()
	for _, step := range []struct{ point, nsid string }{
		{failpoint.AfterCommit, nsid.SendMessage}, // lost-fanout
		{failpoint.BeforeCommit, push.NSIDFanout},
		{failpoint.AfterCommit, push.NSIDFanout},
		{failpoint.BeforeReserve, idem.NSIDPush},
		{failpoint.AfterReserve, idem.NSIDPush},
		{failpoint.AfterWork, idem.NSIDPush},
		{failpoint.BeforeCommit, idem.NSIDPush},
		{failpoint.AfterCommit, idem.NSIDPush},
	} {
		t.Run(step.point+" "+step.nsid, func(t *testing.T) {
			t.Parallel()
			w, server := newPushWorld(t)
			for i := range *pushKills {
				arm(t, w.world, step.point, step.nsid)
				_, err := w.alice.procedure(mlsapi.NSIDSendMessage, w.alice.message(w.convo, fmt.Sprint(i))).send()
				if err != nil && step.nsid != nsid.SendMessage {
					t.Fatal(err)
				}
				if status := server.wait(); status.Signal() != syscall.SIGKILL {
					t.Fatalf("mlsd ended with %v", status)
				}
				w.age()
				server = w.start()
				w.emptied()
			}
			wantPushes(t, w, *pushKills)
		})
	}
}

// wantPushes fails the test unless every message has one job, every job is done, and the device was
// called for each job and for no other reason.
func wantPushes(t *testing.T, w *pushWorld, want int) {
	t.Helper()
	heard, calls := w.device.heard(), 0
	rows, err := w.db.Query(t.Context(), `SELECT id::text, state FROM push_jobs`)
	if err != nil {
		t.Fatal(err)
	}
	jobs := map[string]string{}
	for rows.Next() {
		var id, state string
		if err := rows.Scan(&id, &state); err != nil {
			t.Fatal(err)
		}
		jobs["mlsd-"+id] = state
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for key, state := range jobs {
		if state != "done" || heard[key] == 0 {
			t.Errorf("job %s is %s, and the device was called %d times for it", key, state, heard[key])
		}
	}
	for key, n := range heard {
		if calls += n; jobs[key] == "" {
			t.Errorf("the device was called with %s, which is no job", key)
		}
	}
	if len(jobs) != want {
		t.Errorf("%d jobs for %d messages", len(jobs), want)
	}
	w.wantSound()
	t.Logf("%d messages, %d jobs done, %d calls with %d keys", want, len(jobs), calls, len(heard))
}

// A server is frozen during a call until its lease is over, and another server finishes the job.
// The first one then changes nothing.
func TestPushWorkerFrozen(t *testing.T) {
	t.Parallel()
	w, frozen := newPushWorld(t)
	block := make(chan struct{})
	w.device.block = block
	w.alice.procedure(mlsapi.NSIDSendMessage, w.alice.message(w.convo, "hello")).must().ok()
	first := <-w.device.came
	frozen.signal(syscall.SIGSTOP)
	defer frozen.signal(syscall.SIGCONT)
	w.age()
	second := w.start()
	if again := <-w.device.came; again != first {
		t.Fatalf("the key was %s and is %s now", first, again)
	}
	w.emptied()
	record := func() (s string) {
		err := w.db.QueryRow(t.Context(), `
			SELECT concat_ws(' ', k.state, k.outcome, k.fence, k.completed_at, j.state, j.version, j.ended_at)
			FROM idempotency_keys k JOIN push_jobs j ON j.id::text = k.key WHERE k.nsid = $1`, idem.NSIDPush).Scan(&s)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	done := record()
	if !strings.HasPrefix(done, "completed success 2 ") {
		t.Fatalf("the second server's record: %s", done)
	}
	frozen.signal(syscall.SIGCONT)
	close(block)
	await.Until(t, "the first server finds that it has lost the job", func() bool {
		return strings.Contains(frozen.stderr.String(), "a push job was taken over")
	})
	if after := record(); after != done {
		t.Errorf("the record was %s and is %s now", done, after)
	}
	if n := w.count(`SELECT count(*) FROM audit_log WHERE entity = 'reservation' AND to_state = 'completed'`); n != 1 {
		t.Errorf("%d completions", n)
	}
	if heard := w.device.heard(); len(heard) != 1 || heard[first] != 2 {
		t.Errorf("heard %v", heard)
	}
	t.Logf("heard %v; record: %s", w.device.heard(), done)
	second.signal(syscall.SIGTERM)
	if status := second.wait(); status.ExitStatus() != 0 {
		t.Errorf("the second server ended with %v", status)
	}
	w.use(frozen.admin, frozen.public)
	w.wantSound()
}

// It is an error to set only some of the APNs settings.
func TestIncompleteAPNsKey(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	for _, half := range []string{"MLSD_APNS_KEY_FILE=/none.p8", "MLSD_APNS_KEY_ID=KEY", "MLSD_APNS_TEAM_ID=TEAM"} {
		launch(t, []string{"MLSD_DATABASE_URL=" + database, half}).fails("MLSD_APNS_KEY_FILE")
	}
}
