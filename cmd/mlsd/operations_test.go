package main

import (
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/mlsapi"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/operator"
)

// scrape returns the metrics of a server by name and labels, as written.
func scrape(t *testing.T, s *server) map[string]float64 {
	t.Helper()
	status, page := fetch(t, s.admin+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("/metrics: %d %s", status, page)
	}
	got := map[string]float64{}
	for line := range strings.Lines(page) {
		at := strings.LastIndexByte(line, ' ')
		if n, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); err == nil && line[0] != '#' {
			got[line[:at]] = n
		}
	}
	return got
}

// look runs mlsd inspect and returns what it prints.
func look(t *testing.T, database string, args ...string) string {
	t.Helper()
	s := launch(t, nil, append([]string{"--database-url", database, "inspect"}, args...)...)
	if err := s.wait(); err != nil {
		t.Fatalf("inspect %v: %v", args, err)
	}
	if log := s.stderr.String(); log != "" {
		t.Errorf("inspect %v says on stderr: %s", args, log)
	}
	return s.stdout.String()
}

func lookJSON[T any](t *testing.T, database string, args ...string) T {
	t.Helper()
	return read[T](t, []byte(look(t, database, append(args, "--json")...)))
}

func wantFigures(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, n := range want {
		if value, found := got[name]; !found || value != n {
			t.Errorf("%s is %v (found: %v), want %v", name, value, found, n)
		}
	}
}

// causeEverything causes each event that operators can see once, and returns the key of the stuck
// reservation.
func causeEverything(t *testing.T, w *world, db *pgxpool.Pool) (bob *user, stuck string) {
	t.Helper()
	alice := w.user()
	bob = w.user()
	c := alice.create(bob)

	hello := alice.message(c, "hello")
	alice.procedure(mlsapi.NSIDSendMessage, hello).must().ok()
	if !alice.procedure(mlsapi.NSIDSendMessage, hello).must().replayed() {
		t.Error("no replay")
	}
	other := alice.message(c, "something else")
	other.IdempotencyKey = hello.IdempotencyKey
	alice.procedure(mlsapi.NSIDSendMessage, other).must().fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
	ahead := alice.message(&convo{id: c.id, group: c.group, epoch: c.epoch + 1}, "too soon")
	alice.procedure(mlsapi.NSIDSendMessage, ahead).must().fails(http.StatusConflict, mlsapi.ErrEpochMismatch)

	bob.query(mlsapi.NSIDGetWelcome, "convoId", c.id).must().ok()
	bob.query(mlsapi.NSIDGetWelcome, "convoId", c.id, "deviceId", "none").must().fails(http.StatusNotFound,
		mlsapi.ErrWelcomeNotFound)
	details := "no such key of " + bob.did().String()
	bob.procedure(mlsapi.NSIDConfirmWelcome,
		&mlsapi.ConfirmWelcomeInput{ConvoID: c.id, ErrorDetails: &details}).must().ok()

	// A retry after the lifetime of its key.
	late := bob.publication()
	late.must().ok()
	pgtest.Age(t, db, "idempotency_keys", 25*time.Hour, "expires_at")
	if late.must().header.Get("X-Idempotency-Expired") != "true" {
		t.Error("the key has not expired")
	}

	// First a holder that still works, and then one that is dead.
	creation, _ := alice.creation(bob)
	creation.must().ok()
	err := db.QueryRow(t.Context(), `
		UPDATE idempotency_keys SET state = 'processing', started_at = now() - interval '7 minutes', lease_expires_at = now()
			+ interval '1 minute'
		WHERE nsid = $1 AND created_at = (SELECT max(created_at) FROM idempotency_keys WHERE nsid = $1) RETURNING key`,
		mlsapi.NSIDCreateConvo).Scan(&stuck)
	if err != nil {
		t.Fatal(err)
	}
	creation.must().fails(http.StatusConflict, mlsapi.ErrRequestInProgress)
	pgtest.Age(t, db, "idempotency_keys", 5*time.Minute, "lease_expires_at")
	return bob, stuck
}

// Finding A11: requests that fail in the database are counted by kind, also those whose outcome is not
// known.
func TestStorageFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	database := pgtest.URL(t)
	s := boot(t, nil, w.flags("--database-url", database, "--failpoints=true")...)
	w.use(s.admin, s.public)
	alice := w.user()
	block := alice.procedure(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: w.user().did()}) // without a key
	armWith(t, w, failpoint.Error, failpoint.AfterCommit, mlsapi.NSIDBlockActor)
	block.must().fails(http.StatusServiceUnavailable, "ServiceUnavailable")
	bob := w.user()
	c := alice.create(bob)
	db := pgtest.Session(t, database)
	if _, err := db.Exec(t.Context(), `DELETE FROM transitions WHERE to_state = 'in_flight'`); err != nil {
		t.Fatal(err)
	}
	bob.query(mlsapi.NSIDGetWelcome, "convoId", c.id).must().fails(http.StatusInternalServerError, "InternalServerError")
	wantFigures(t, scrape(t, s), map[string]float64{
		`mlsd_storage_failures_total{kind="unknown_outcome"}`: 1, `mlsd_storage_failures_total{kind="error"}`: 1,
		`mlsd_storage_failures_total{kind="unavailable"}`: 0, `mlsd_storage_failures_total{kind="contended"}`: 0,
	})
}

// The metrics and inspect show what has happened.
func TestEventsArePublished(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w := newWorld(t)
	s := boot(t, nil, w.flags("--database-url", database)...)
	w.use(s.admin, s.public)
	bob, stuck := causeEverything(t, w, db)

	wantFigures(t, scrape(t, s), map[string]float64{
		`mlsd_idempotency_total{nsid="blue.catbird.mls.sendMessage",outcome="replay"}`:                      1,
		`mlsd_idempotency_total{nsid="blue.catbird.mls.sendMessage",outcome="conflict"}`:                    1,
		`mlsd_idempotency_total{nsid="blue.catbird.mls.sendMessage",outcome="first"}`:                       1,
		`mlsd_idempotency_total{nsid="blue.catbird.mls.createConvo",outcome="first"}`:                       2,
		`mlsd_idempotency_total{nsid="blue.catbird.mls.addMembers",outcome="replay"}`:                       0,
		`mlsd_worker_failures_total{worker="sweeper"}`:                                                      0,
		`mlsd_swept_rows_total{rows="idempotency_keys"}`:                                                    0,
		`mlsd_idempotency_total{nsid="blue.catbird.mls.createConvo",outcome="in_progress"}`:                 1,
		`mlsd_idempotency_total{nsid="blue.catbird.mls.publishKeyPackage",outcome="expired"}`:               1,
		`mlsd_idempotency_total{nsid="mlsd.push",outcome="takeover"}`:                                       0,
		`mlsd_idempotency_total{nsid="mlsd.push",outcome="heartbeat_lost"}`:                                 0,
		`mlsd_epoch_conflicts_total{nsid="blue.catbird.mls.sendMessage"}`:                                   1,
		`mlsd_requests_total{error="IdempotencyConflict",nsid="blue.catbird.mls.sendMessage",status="409"}`: 1,
		`mlsd_welcome_fetches_total{outcome="ok"}`:                                                          1,
		`mlsd_welcome_fetches_total{outcome="WelcomeNotFound"}`:                                             1,
		`mlsd_database_up`:                                        1,
		`mlsd_reservations{state="processing"}`:                   1,
		`mlsd_reservations_stuck`:                                 1,
		`mlsd_records{nsid="blue.catbird.mls.createConvo"}`:       2,
		`mlsd_records{nsid="blue.catbird.mls.publishKeyPackage"}`: 3,
		// bob's first key, and a claim without a key; another expired key was used again, and one key is new
		`mlsd_records_expired`:                                2,
		`mlsd_welcomes{state="available"}`:                    1,
		`mlsd_welcomes{state="in_flight"}`:                    1,
		`mlsd_key_packages{state="consumed"}`:                 2,
		`mlsd_key_packages{state="available"}`:                1,
		`mlsd_overdue_rows{worker="welcomes"}`:                0,
		`mlsd_audit_rows_last_hour{entity="welcome"}`:         2,
		`mlsd_welcome_confirmations_total{outcome="failure"}`: 1,
		`mlsd_welcome_confirmations_total{outcome="success"}`: 0,
		`mlsd_welcomes_many_attempts`:                         0,
	})

	// findings A9 and A10
	for _, name := range []string{"mlsd_idempotency_lookup_seconds_count", "mlsd_commit_seconds_count"} {
		if n := scrape(t, s)[name]; n < 5 {
			t.Errorf("%s is %v", name, n)
		}
	}

	reservations := lookJSON[operator.Reservations](t, database, "reservations")
	if len(reservations.Reservations) != 1 || reservations.Stuck != 1 || reservations.Processing != 1 ||
		reservations.Released != 0 {
		t.Fatalf("reservations: %+v", reservations)
	}
	one := reservations.Reservations[0]
	if one.Key != stuck || !one.Stuck || one.Method != mlsapi.NSIDCreateConvo || one.Fence != 1 ||
		one.AgeSeconds < 420 || one.AgeSeconds > 480 || one.LeaseSeconds > -240 || one.LeaseSeconds < -300 ||
		!strings.HasSuffix(one.Caller, "…") {
		t.Errorf("the stuck reservation: %+v", one)
	}
	if full := lookJSON[operator.Reservations](t, database, "reservations",
		"--dids").Reservations[0].Caller; !strings.HasPrefix(full, "did:") || strings.HasSuffix(full, "…") {
		t.Errorf("its caller in full: %s", full)
	}

	welcomes := lookJSON[operator.Welcomes](t, database, "welcomes")
	if diff := cmp.Diff([]operator.ErrorCount{{Error: "no such key of did:…", Count: 1}},
		welcomes.LastErrors); diff != "" || welcomes.FetchedAndNotConfirmed != 1 ||
		welcomes.OldestInFlightSeconds == nil || welcomes.GraceOverAndNotReleased != 0 || len(welcomes.States) != 2 {
		t.Errorf("welcomes: %+v %s", welcomes, diff)
	}
	stock := lookJSON[operator.KeyPackages](t, database, "keypackages", "--dids")
	if diff := cmp.Diff([]operator.LowStock{{DID: bob.did().String(), Stocks: 1, Available: 1}},
		stock.Below); diff != "" || stock.BelowDIDs != 1 || stock.Threshold != 20 {
		t.Errorf("keypackages: %+v %s", stock, diff)
	}
	for _, l := range lookJSON[operator.Lifetimes](t, database, "lifetimes").Lifetimes {
		switch l.Method {
		case mlsapi.NSIDCreateConvo:
			// Finding A14: how long its records really last. One has aged by 25 hours.
			if l.LifeSeconds != 7*86400 || l.Records != 2 || l.Expired != 0 || l.NextSeconds == nil ||
				l.MeanSeconds == nil || math.Abs(*l.MeanSeconds-7*86400+12.5*3600) > 1 {
				t.Errorf("lifetime of createConvo: %+v", l)
			}
		case mlsapi.NSIDPublishKeyPackage:
			if l.LifeSeconds != 86400 || l.Records != 3 || l.Expired != 1 {
				t.Errorf("lifetime of publishKeyPackage: %+v", l)
			}
		}
	}
	var processing, bytes int64
	for _, c := range lookJSON[operator.RecordCounts](t, database, "records").Records {
		bytes += c.AnswerBytes
		if c.State == "processing" {
			processing += c.Count
		}
	}
	if processing != 1 || bytes == 0 {
		t.Errorf("records: %d processing, %d bytes of answers", processing, bytes)
	}
	counted := lookJSON[operator.TransitionCounts](t, database, "audit").Transitions
	if !slices.Contains(counted,
		operator.TransitionCount{Entity: "welcome", From: "available", To: "in_flight", Reason: "getWelcome", Count: 1}) {
		t.Errorf("audit: %+v", counted)
	}
	trail := lookJSON[operator.Trail](t, database, "audit", mlsapi.NSIDCreateConvo+" "+stuck).Transitions
	if len(trail) != 1 || trail[0].To != "processing" {
		t.Errorf("the stuck reservation's trail: %+v", trail)
	}

	s.stop() // the server writes the last counts at its end
	wantCallers(t, database, bob)
	var written []operator.Conflict
	for _, c := range lookJSON[operator.Conflicts](t, database, "conflicts").Conflicts {
		written = append(written, operator.Conflict{Error: c.Error, Method: c.Method, Count: c.Count})
	}
	if diff := cmp.Diff([]operator.Conflict{
		{Error: "EpochMismatch", Method: mlsapi.NSIDSendMessage, Count: 1},
		{Error: "IdempotencyConflict", Method: mlsapi.NSIDSendMessage, Count: 1},
		{Error: "RequestInProgress", Method: mlsapi.NSIDCreateConvo, Count: 1},
	}, written); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}

	all := lookJSON[map[string]any](t, database)
	text := look(t, database, "all")
	for _, m := range operator.Methods() {
		if _, found := all[m.Verb]; m.Question() && (!found || !strings.Contains(text, "== "+m.Verb+": ")) {
			t.Errorf("the summary lacks %s", m.Verb)
		}
	}
	if regexp.MustCompile(`did:[a-z]+:[A-Za-z0-9]{5}`).MatchString(text) {
		t.Errorf("a DID is in the summary:\n%s", text)
	}
}

// serverOfEverything boots a server on a database of its own, in which causeEverything has acted.
func serverOfEverything(t *testing.T) (w *world, s *server, database string) {
	t.Helper()
	database = pgtest.URL(t)
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	w = newWorld(t)
	s = boot(t, nil, w.flags("--database-url", database)...)
	w.use(s.admin, s.public)
	causeEverything(t, w, db)
	return w, s, database
}

// E10, S2. The runbook's way from the alert to the reason: inspect welcomes lists the Welcomes with
// a failed join, and inspect audit shows what the device said, without its DID.
func TestRunbookOfFailedWelcomes(t *testing.T) {
	t.Parallel()
	_, _, database := serverOfEverything(t)

	if n := len(lookJSON[operator.Welcomes](t, database, "welcomes", "--state", "available").Welcomes); n != 1 {
		t.Errorf("%d available Welcomes, want 1", n)
	}
	if n := len(lookJSON[operator.Welcomes](t, database, "welcomes", "--state", "consumed", "--failed").Welcomes); n != 0 {
		t.Errorf("%d consumed Welcomes with a failed join, want none", n)
	}
	listed := lookJSON[operator.Welcomes](t, database, "welcomes", "--failed").Welcomes
	if len(listed) != 1 {
		t.Fatalf("listed: %+v", listed)
	}
	one := listed[0]
	if one.State != "in_flight" || one.Attempts != 1 || one.Failures != 1 || one.FetchedSeconds == nil ||
		one.FailedSeconds == nil ||
		one.Convo == "" || one.LastError != "no such key of did:…" {
		t.Errorf("the failed Welcome: %+v", one)
	}
	if text := look(t, database, "welcomes"); !strings.Contains(text, one.ID) || !strings.Contains(text, one.Convo) {
		t.Errorf("the Welcome is not listed:\n%s", text)
	}
	if n := len(lookJSON[operator.Welcomes](t, database, "welcomes", "--rows", "1", "--state",
		"in_flight").Welcomes); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	trail := lookJSON[operator.Trail](t, database, "audit", one.ID).Transitions
	if len(trail) != 2 || trail[0].Reason != "confirmWelcome" || trail[0].From != "in_flight" ||
		trail[0].To != "in_flight" ||
		trail[0].Details != "no such key of did:…" || trail[1].Reason != "getWelcome" {
		t.Errorf("the Welcome's trail: %+v", trail)
	}
	launch(t, nil, "--database-url", database, "inspect", "welcomes", "--state", "lost").fails("--state", "in_flight")
}

func TestInspectPush(t *testing.T) {
	t.Parallel()
	database := pgtest.EmptyURL(t)
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.Exec(t.Context(), `
		CREATE TABLE push_jobs AS
		SELECT 'pending' AS state, 3 AS attempts, now() AS next_attempt_at, 'refused' AS last_error, now() AS created_at`)
	if err != nil {
		t.Fatal(err)
	}
	r := lookJSON[operator.PushJobs](t, database, "push")
	if len(r.Jobs) != 1 || r.Jobs[0].Count != 1 || r.Jobs[0].Due != 1 || r.Jobs[0].Attempts != 3 ||
		len(r.LastErrors) != 1 {
		t.Errorf("%+v", r)
	}
	launch(t, nil, "--database-url", database, "inspect", "records").fails("inspect records", "idempotency_keys")
	launch(t, nil, "--database-url", database, "inspect", "push", "--rows", "0").fails("must be positive")
}
