package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/jackc/pgx/v5"

	"mlsd/api/errorlist"
	"mlsd/api/mlsapi"
	"mlsd/features/reports"
	"mlsd/idem"
	"mlsd/internal/await"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/operator"
)

// fault makes real what alerts are for.
type fault struct {
	alerts  []string
	flags   []string      // of the node
	step    time.Duration // between scrapes; 0: a minute
	atStart bool          // the node has the fault from its start
	// cause begins the fault. each is called before each scrape; it can be nil.
	cause func(w *watched) (each func())
}

// notCaused says why a test cannot make an alert fire. deploy/ops/alerts_test.yml has sample series.
var notCaused = map[string]string{
	"MlsdSubscribersTooSlow": "20 subscribers would have to leave megabytes unread for 15 seconds each",
	"MlsdTransactionIDs":     "it takes more than a billion transactions",
	"MlsdArchiveFails":       "it needs a PostgreSQL whose archive_command fails; the tests share one that has none",
}

var faults = []fault{
	{alerts: []string{"MlsdDown"}, cause: func(w *watched) func() {
		w.nodes[0].stop()
		return nil
	}},
	{alerts: []string{"MlsdNodeDown"}, cause: func(w *watched) func() {
		w.add()
		w.silent(3*time.Minute, time.Minute, nil)
		w.nodes[1].stop()
		return nil
	}},
	{alerts: []string{"MlsdDatabaseUnavailable", "MlsdServerErrors"}, cause: func(w *watched) func() {
		alice := w.user()
		alice.query(mlsapi.NSIDGetConvos).must().ok()
		administer(w.t, w.database, `ALTER DATABASE "{db}" ALLOW_CONNECTIONS false`,
			`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{db}'`)
		return func() {
			for range 3 {
				if a := alice.query(mlsapi.NSIDGetConvos).must(); a.status < http.StatusInternalServerError {
					w.t.Fatalf("status %d without a database", a.status)
				}
			}
		}
	}},
	{alerts: []string{"MlsdClocksDiffer"}, cause: func(w *watched) func() {
		w.wrong.ahead.Store(int64(10 * time.Second))
		return nil
	}},
	// Somebody locks the table of convos, and forgets the transaction.
	{alerts: []string{"MlsdWritesFail"}, cause: func(w *watched) func() {
		alice := w.user()
		convo := alice.create(w.user())
		w.holds(`LOCK TABLE convos`)
		return func() {
			alice.procedure(mlsapi.NSIDSendMessage, alice.message(convo, "hello")).must().
				fails(http.StatusConflict, mlsapi.ErrRequestInProgress)
		}
	}},
	// The database takes a second for a statement.
	{alerts: []string{"MlsdSlow"}, step: 4 * time.Minute, cause: func(w *watched) func() {
		alice := w.user()
		w.delay("INSERT", "convos", 1.1)
		return func() { alice.create(w.user()) }
	}},
	{alerts: []string{"MlsdStaleReservations"}, cause: func(w *watched) func() {
		w.reserved(-time.Minute)
		return nil
	}},
	{alerts: []string{"MlsdLockFailures"}, cause: func(w *watched) func() {
		creation := w.reserved(time.Hour)
		return func() {
			for range 3 {
				creation.must().fails(http.StatusConflict, mlsapi.ErrRequestInProgress)
			}
		}
	}},
	// The call hangs, and the database does not take the heartbeats.
	{alerts: []string{"MlsdHeartbeatFailures"}, cause: func(w *watched) func() {
		goOn := make(chan struct{})
		called := w.called(1, func(http.ResponseWriter) { <-goOn })
		w.t.Cleanup(func() { close(goOn) })
		called.message()
		return func() {
			armWith(w.t, w.world, failpoint.Error, failpoint.Heartbeat, idem.NSIDPush)
			pgtest.Age(w.t, w.db, "push_jobs", time.Hour, "next_attempt_at") // if the call has timed out
		}
	}},
	// Holders die once they have reserved the call.
	{alerts: []string{"MlsdTakeovers"}, cause: func(w *watched) func() {
		called := w.called(1, func(http.ResponseWriter) {})
		called.message()
		dead := 0
		return func() {
			await.Until(w.t, "the holder is dead", func() bool {
				return strings.Count(w.nodes[0].stderr.String(), "a push job is left for another worker") == dead
			})
			dead++
			armWith(w.t, w.world, failpoint.Error, failpoint.AfterReserve, idem.NSIDPush)
			pgtest.Age(w.t, w.db, "idempotency_keys", time.Hour, "lease_expires_at")
			pgtest.Age(w.t, w.db, "push_jobs", time.Hour, "next_attempt_at")
		}
	}},
	// The holder hangs, and keeps its lease.
	{alerts: []string{"MlsdReservationsHeld"}, flags: []string{"--idempotency-lease", "push=1h"}, step: 15 * time.Second,
		cause: func(w *watched) func() {
			called := w.called(1, func(http.ResponseWriter) {})
			armWith(w.t, w.world, failpoint.Error, failpoint.AfterReserve, idem.NSIDPush)
			called.message()
			return func() {
				pgtest.Age(w.t, w.db, "push_jobs", 2*time.Hour, "next_attempt_at")
			}
		}},
	{alerts: []string{"MlsdIdempotencyConflicts"}, cause: func(w *watched) func() {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		first := alice.message(c, "hello")
		alice.procedure(mlsapi.NSIDSendMessage, first).must().ok()
		for n := range 10 {
			other := alice.message(c, fmt.Sprint("again ", n))
			other.IdempotencyKey = first.IdempotencyKey
			alice.procedure(mlsapi.NSIDSendMessage, other).must().fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
		}
		return nil
	}},
	{alerts: []string{"MlsdMessagesRepeated"}, cause: func(w *watched) func() {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		for range 2 { // each under a key of its own
			alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "hello")).must().ok()
		}
		return nil
	}},
	{alerts: []string{"MlsdQuotasUsedUp"}, flags: []string{"--quota-messages", "3"}, cause: func(w *watched) func() {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		for i := range 3 {
			alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, fmt.Sprint("message ", i))).must().ok()
		}
		more := alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "one more"))
		for range 110 {
			more.must().fails(http.StatusTooManyRequests, errorlist.QuotaExceeded)
		}
		return nil
	}},
	{alerts: []string{"MlsdEpochConflicts"}, cause: func(w *watched) func() {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		late := &convo{id: c.id, group: c.group, epoch: c.epoch + 1}
		alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "hello")).must().ok()
		return func() {
			for range 3 {
				alice.procedure(mlsapi.NSIDSendMessage, alice.message(late, "x")).must().fails(http.StatusConflict,
					mlsapi.ErrEpochMismatch)
			}
		}
	}},
	// An invitation that no device can find.
	{alerts: []string{"MlsdWelcomeFetchFailures"}, cause: func(w *watched) func() {
		alice, bob := w.user(), w.user()
		c := alice.create(bob)
		for range 4 {
			bob.query(mlsapi.NSIDGetWelcome, "convoId", c.id, "deviceId", "none").must().fails(http.StatusNotFound,
				mlsapi.ErrWelcomeNotFound)
		}
		return nil
	}},
	{alerts: []string{"MlsdWelcomeJoinFailures"}, cause: func(w *watched) func() {
		c, invited := w.invited(4)
		for _, u := range invited {
			u.query(mlsapi.NSIDGetWelcome, "convoId", c.id).must().ok()
			u.procedure(mlsapi.NSIDConfirmWelcome, &mlsapi.ConfirmWelcomeInput{ConvoID: c.id}).must().ok()
		}
		return nil
	}},
	{alerts: []string{"MlsdWelcomeManyAttempts"}, flags: []string{"--welcome-on-grace-expiry", "release"},
		cause: func(w *watched) func() {
			c, invited := w.invited(11)
			for range 5 {
				for _, u := range invited {
					u.query(mlsapi.NSIDGetWelcome, "convoId", c.id).must().ok()
				}
				pgtest.Age(w.t, w.db, "welcomes", 10*time.Minute, "grace_expires_at")
			}
			return nil
		}},
	{alerts: []string{"MlsdKeyPackagesDepleted"}, cause: func(w *watched) func() {
		w.invited(1) // it publishes one KeyPackage, which the Welcome uses up
		return nil
	}},
	{alerts: []string{"MlsdKeyPackagesRunningOut"}, cause: func(w *watched) func() {
		w.exec(`INSERT INTO key_package_signals (did, device_id, cipher_suite, kind, count, raised_at)
			SELECT 'did:plc:' || n, 'phone', 1, 'last_resort', 0, now() FROM generate_series(1, 150) AS n`)
		return nil
	}},
	// A statement of the sweeper hangs.
	{alerts: []string{"MlsdSweeperNotRunning", "MlsdWorkOverdue"}, step: 4 * time.Minute, cause: func(w *watched) func() {
		w.hung = 30 * time.Second
		w.user().publication().must().ok()
		w.delay("DELETE", "used_tokens", 60)
		pgtest.Age(w.t, w.db, "used_tokens", 24*time.Hour)
		return nil
	}},
	{alerts: []string{"MlsdDisputes"}, cause: func(w *watched) func() {
		alice, bob := w.user(), w.user()
		for range 7 {
			c := alice.create(bob)
			bob.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.id}).must().ok()
			for _, u := range []*user{alice, bob} {
				seen := sha256.Sum256([]byte(u.did()))
				u.procedure(mlsapi.NSIDReportEpoch,
					&mlsapi.ReportEpochInput{ConvoID: c.id, Epoch: c.epoch, AuthenticatorHash: seen[:]}).must().ok()
			}
		}
		return nil
	}},
	// Another session has the sequencer's lock, and does not let go.
	{alerts: []string{"MlsdEventsLate", "MlsdNoSequencer"}, cause: func(w *watched) func() {
		alice, bob := w.user(), w.user()
		other, locked := pgtest.Session(w.t, w.database), make(chan error, 1)
		go func() {
			_, err := other.Exec(w.t.Context(), `SELECT pg_advisory_lock($1, $2)`, pgpool.NodeLockSpace, pgpool.LockSequencer)
			locked <- err
		}()
		await.Until(w.t, "the other session has the lock", func() bool {
			w.exec(`SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_locks waiter USING (database, classid, objid)
				WHERE l.locktype = 'advisory' AND l.granted AND NOT waiter.granted AND l.classid = $1 AND l.objid = $2`,
				pgpool.NodeLockSpace, pgpool.LockSequencer)
			return len(locked) > 0
		})
		if err := <-locked; err != nil {
			w.t.Fatal(err)
		}
		alice.create(bob) // a message that is alone would not wait for the sequencer
		pgtest.Age(w.t, w.db, "outbox", time.Minute)
		return nil
	}},
	// A session has locked the job.
	{alerts: []string{"MlsdErasureStuck"}, cause: func(w *watched) func() {
		bob := w.user()
		w.user().create(bob)
		done[operator.Erasing](w.world, "account", "erase", bob.did().String())
		pgtest.Age(w.t, w.db, "erasures", time.Hour)
		w.holds(`SELECT FROM erasures FOR UPDATE`)
		return nil
	}},
	{alerts: []string{"MlsdReportsUnread"}, flags: []string{"--report-key", reportKey}, cause: func(w *watched) func() {
		alice, bob := w.user(), w.user()
		alice.sendsReport(alice.create(bob), reports.Content{})
		pgtest.Age(w.t, w.db, "abuse_reports", 4*24*time.Hour)
		return nil
	}},
	// The store belongs to another database.
	{alerts: []string{"MlsdAttachmentsNotDeleted"}, flags: []string{"--attachments", attachmentsHere},
		cause: func(w *watched) func() {
			w.claimStore()
			alice, bob := w.user(), w.user()
			sum := sha256.Sum256([]byte("a picture"))
			alice.procedure(mlsapi.NSIDCreateAttachment, &mlsapi.CreateAttachmentInput{ConvoID: alice.create(bob).id, Size: 9,
				Sha256: hex.EncodeToString(sum[:]), IdempotencyKey: newKey()}).must().ok()
			w.exec(`UPDATE attachments SET state = 'deleted', touched_at = now() - interval '25 hours'`)
			return nil
		}},
	{alerts: []string{"MlsdStandbyNotRead"}, flags: []string{"--read-database-url", "postgres://127.0.0.1:1/mlsd"},
		cause: func(*watched) func() { return nil }},
	// The database does not know a transition.
	{alerts: []string{"MlsdInvalidTransition"}, cause: func(w *watched) func() {
		c, invited := w.invited(1)
		w.exec(`DELETE FROM transitions WHERE entity = 'welcome' AND to_state = 'in_flight'`)
		invited[0].query(mlsapi.NSIDGetWelcome, "convoId", c.id).must().fails(http.StatusInternalServerError,
			"InternalServerError")
		return nil
	}},
	{alerts: []string{"MlsdPushLate"}, cause: func(w *watched) func() {
		called := w.called(1, func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusTooManyRequests) })
		called.message()
		return func() {
			pgtest.Age(w.t, w.db, "push_jobs", 4*time.Hour, "created_at")
		}
	}},
	{alerts: []string{"MlsdPushFails"}, cause: func(w *watched) func() {
		called := w.called(8, func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusTooManyRequests) })
		return func() {
			called.answered()
			if w.count(`SELECT count(*) FROM push_jobs WHERE state = 'sending'`) == 0 {
				called.message()
			}
			w.exec(`UPDATE push_jobs SET next_attempt_at = now(), last_error = NULL WHERE state = 'sending'`)
		}
	}},
	{alerts: []string{"MlsdPushesDead"}, cause: func(w *watched) func() {
		called := w.called(8, func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusNotFound) })
		return func() {
			called.answered()
			called.message()
		}
	}},
	// The PLC directory ends. People whose keys are not known come, and get 503.
	{alerts: []string{"MlsdPLCFails"}, cause: func(w *watched) func() {
		w.plc.Close()
		return func() {
			for range 3 {
				w.user().query(mlsapi.NSIDGetConvos).must().fails(http.StatusServiceUnavailable,
					errorlist.ServiceUnavailable)
			}
		}
	}},
	{alerts: []string{"MlsdRelayDisconnected"}, flags: []string{"--relay-url", "ws://127.0.0.1:1"},
		cause: func(*watched) func() { return nil }},
	// The node was away for a week, and the source keeps its events for a shorter time.
	{alerts: []string{"MlsdRelayGap"}, flags: []string{"--relay-url", jetstreamHere}, cause: func(w *watched) func() {
		source := w.flags[1]
		w.nodes[0].stop()
		w.nodes = nil
		w.exec(`INSERT INTO relay_cursors VALUES ('jetstream ' || $1, 1, now() - interval '7 days')
			ON CONFLICT (source) DO UPDATE SET updated_at = excluded.updated_at`, source)
		w.time.advance(7 * 24 * time.Hour)
		w.add()
		await.Until(w.t, "the node follows its source",
			func() bool { return scrape(w.t, w.nodes[0])["mlsd_relay_connected"] == 1 })
		return nil
	}},
	{alerts: []string{"MlsdAccountsDeleted"}, flags: []string{"--relay-url", jetstreamHere}, cause: func(
		w *watched) func() {
		const accounts = 150
		w.exec(`INSERT INTO accounts (did, version)
			SELECT 'did:plc:' || lpad(translate(n::text, '0189', 'abcd'), 24, 'z'), 1 FROM generate_series(1, $1) AS n`,
			accounts)
		rows, err := w.db.Query(w.t.Context(), `SELECT did FROM accounts`)
		if err != nil {
			w.t.Fatal(err)
		}
		dids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			w.t.Fatal(err)
		}
		w.deleted <- dids
		await.Until(w.t, "the statuses are stored", func() bool {
			return w.count(`SELECT count(*) FROM accounts WHERE status = 'deleted'`) == accounts
		})
		return nil
	}},
}

// Flags whose values each test has for itself.
const (
	attachmentsHere = "{attachments}"
	jetstreamHere   = "{jetstream}"
)

// place sets the values of flags that each test has for itself.
func (w *watched) place(flags []string) (placed []string) {
	for _, flag := range flags {
		switch flag {
		case attachmentsHere:
			w.files = w.t.TempDir()
			flag = w.files
		case jetstreamHere:
			w.deleted = make(chan []string, 1)
			source := httptest.NewServer(http.HandlerFunc(w.jetstream))
			w.t.Cleanup(source.Close)
			w.t.Cleanup(source.CloseClientConnections)
			flag = "ws" + strings.TrimPrefix(source.URL, "http") + "/subscribe"
		}
		placed = append(placed, flag)
	}
	return placed
}

// jetstream is a Jetstream that says that accounts were deleted.
func (w *watched) jetstream(rw http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(rw, r, nil)
	if err != nil {
		w.t.Error(err)
		return
	}
	defer func() { _ = ws.CloseNow() }() // the test ends
	ctx := ws.CloseRead(r.Context())
	for {
		select {
		case <-ctx.Done():
			return
		case dids := <-w.deleted:
			for n, did := range dids {
				event := fmt.Sprintf(`{"did":%q,"time_us":%d,"kind":"account","account":
					{"active":false,"did":%[1]q,"seq":%[3]d,"status":"deleted","time":%[4]q}}`, did, time.Now().UnixMicro(), n+1,
					time.Now().UTC().Format(time.RFC3339))
				if err := ws.Write(ctx, websocket.MessageText, []byte(event)); err != nil {
					return // the node reads no more
				}
			}
		}
	}
}

// delay makes the statements of a kind on a table take seconds.
func (w *watched) delay(kind, table string, seconds float64) {
	w.t.Helper()
	w.exec(fmt.Sprintf(`CREATE FUNCTION delay() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_sleep(%v); RETURN NULL; END $$`, seconds))
	w.exec(fmt.Sprintf(`CREATE TRIGGER delay BEFORE %s ON %s EXECUTE FUNCTION delay()`, kind, table))
}

// holds runs a statement in a transaction that stays open.
func (w *watched) holds(sql string) {
	w.t.Helper()
	session := pgtest.Session(w.t, w.database)
	for _, s := range []string{"BEGIN", sql} {
		if _, err := session.Exec(w.t.Context(), s); err != nil {
			w.t.Fatalf("%s: %v", s, err)
		}
	}
}

// claimStore makes the store of attachments that of another database of the same cluster.
func (w *watched) claimStore() {
	w.t.Helper()
	var claims []string
	await.Until(w.t, "the store has its claim", func() bool {
		claims, _ = filepath.Glob(filepath.Join(w.files, "databases", "*")) // the pattern is good
		return len(claims) == 1
	})
	text, err := os.ReadFile(claims[0])
	if err != nil {
		w.t.Fatal(err)
	}
	claim := strings.Fields(string(text)) // the cluster, the database, its start, the service, the time
	claim[1], claim[4] = "1", fmt.Sprint(time.Now().Unix())
	if err := os.WriteFile(claims[0], []byte(strings.Join(claim, " ")), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// reserved returns a request whose reservation another attempt has, with a lease that ends after left.
func (w *watched) reserved(left time.Duration) request {
	alice, bob := w.user(), w.user()
	creation, _ := alice.creation(bob)
	creation.must().ok()
	w.exec(`UPDATE idempotency_keys SET state = 'processing', started_at = now() - interval '7 minutes',
		lease_expires_at = now() + $2::interval WHERE nsid = $1`, mlsapi.NSIDCreateConvo, left)
	return creation
}

// invited creates a convo and returns the people who have a Welcome to it.
func (w *watched) invited(n int) (c *convo, all []*user) {
	w.t.Helper()
	for range n {
		all = append(all, w.user())
	}
	return w.user().create(all...), all
}

// called are people whose devices are webhooks, in a convo with alice.
type called struct {
	w     *watched
	alice *user
	convo *convo
}

// called makes n people whose webhook answers with answer once it has passed its challenge.
func (w *watched) called(n int, answer func(http.ResponseWriter)) *called {
	w.t.Helper()
	c := &called{w: w, alice: w.user()}
	hook := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var call struct{ Challenge string }
		if err := json.NewDecoder(r.Body).Decode(&call); err != nil {
			w.t.Error(err)
		}
		if call.Challenge != "" {
			_, _ = io.WriteString(rw, call.Challenge) // the server notices what is missing
			return
		}
		answer(rw)
	}))
	w.t.Cleanup(hook.Close)
	var people []*user
	for range n {
		people = append(people, w.user())
	}
	c.convo = c.alice.create(people...)
	url := hook.URL + "/"
	for _, u := range people {
		u.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.convo.id}).must().ok()
		u.procedure(mlsapi.NSIDRegisterPushTarget,
			&mlsapi.RegisterPushTargetInput{DeviceID: "phone", Kind: "webhook", URL: &url}).must().ok()
	}
	for w.count(`SELECT count(*) FROM push_targets WHERE state = 'active'`) < n {
		w.step(15 * time.Second)
	}
	return c
}

// message sends a message, for which each device is called.
func (c *called) message() {
	c.w.t.Helper()
	c.alice.procedure(mlsapi.NSIDSendMessage, c.alice.message(c.convo, "hello")).must().ok()
}

// answered waits until every device that was to be called has answered, or has a job that waits.
func (c *called) answered() {
	c.w.t.Helper()
	await.Until(c.w.t, "the devices have answered", func() bool {
		return c.w.count(`SELECT (SELECT count(*) FROM push_convos)
			+ (SELECT count(*) FROM push_jobs WHERE state IN ('pending', 'sending') AND last_error IS NULL)`) == 0
	})
}
