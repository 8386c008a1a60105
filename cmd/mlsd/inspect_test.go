package main

import (
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/mlsapi"
	"mlsd/internal/await"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/operator"
)

// lines returns what inspect prints, without the padding of its columns.
func lines(text string) []string {
	return strings.Split(regexp.MustCompile(`  +`).ReplaceAllString(strings.TrimSpace(text), " | "), "\n")
}

// hour is how inspect writes the hour of a moment.
func hour(t time.Time) string { return t.UTC().Format("2006-01-02 15:00") }

// wantCallers wants the counts of causeEverything by caller. Finding S3.
func wantCallers(t *testing.T, database string, bob *user) {
	t.Helper()
	var got []operator.CallerUse
	for _, c := range lookJSON[operator.CallerUses](t, database, "records", "--by-caller", "--since", "1h",
		"--dids").Callers {
		if c.MeanSeconds <= 0 || c.Seconds < c.MeanSeconds {
			t.Errorf("times of %+v", c)
		}
		c.Seconds, c.MeanSeconds = 0, 0
		if c.Caller == bob.did().String() && c.Method == mlsapi.NSIDPublishKeyPackage {
			got = append(got, c)
		}
		if c.Method == mlsapi.NSIDSendMessage || c.Method == mlsapi.NSIDCreateConvo {
			c.Caller = "alice" // nobody else does
			got = append(got, c)
		}
	}
	want := []operator.CallerUse{
		{Caller: "alice", Method: mlsapi.NSIDSendMessage, Requests: 4, First: 1, Replayed: 1, Conflicts: 1, Epoch: 1},
		{Caller: "alice", Method: mlsapi.NSIDCreateConvo, Requests: 3, First: 2, InProgress: 1},
		{Caller: bob.did().String(), Method: mlsapi.NSIDPublishKeyPackage, Requests: 4, First: 3, Expired: 1},
	}
	byMethod := func(a, b operator.CallerUse) int { return strings.Compare(a.Method, b.Method) }
	slices.SortFunc(got, byMethod)
	slices.SortFunc(want, byMethod)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records by caller (-want +got):\n%s", diff)
	}
	var refused []operator.RefusedUse
	for _, c := range lookJSON[operator.RefusedUses](t, database, "conflicts", "--by-caller").Callers {
		if !strings.HasSuffix(c.Caller, "…") {
			t.Errorf("a caller in full: %s", c.Caller)
		}
		refused = append(refused, operator.RefusedUse{Error: c.Error, Method: c.Method, Count: c.Count})
	}
	if diff := cmp.Diff([]operator.RefusedUse{
		{Error: "EpochMismatch", Method: mlsapi.NSIDSendMessage, Count: 1},
		{Error: "IdempotencyConflict", Method: mlsapi.NSIDSendMessage, Count: 1},
		{Error: "RequestInProgress", Method: mlsapi.NSIDCreateConvo, Count: 1},
	}, refused); diff != "" {
		t.Errorf("conflicts by caller (-want +got):\n%s", diff)
	}
	counted := lookJSON[operator.TransitionCounts](t, database, "audit").Transitions // finding S4
	for _, want := range []operator.TransitionCount{
		{Entity: "record", From: "completed", To: "conflict", Reason: "used for another request", Count: 1},
		{Entity: "record", From: "expired", To: "reused", Reason: "publishKeyPackage", Count: 1},
	} {
		if !slices.Contains(counted, want) {
			t.Errorf("the audit log lacks %+v: %+v", want, counted)
		}
	}
}

// inspected is a database whose rows a test writes itself.
func inspected(t *testing.T, statements ...string) (database string, db *pgxpool.Pool) {
	t.Helper()
	database = pgtest.URL(t)
	db, err := pgpool.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	for _, sql := range statements {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return database, db
}

// inspect says what services have used of their budgets, and which homes have not taken invitations.
func TestInspectServices(t *testing.T) {
	t.Parallel()
	database, _ := inspected(t, `
		INSERT INTO invitation_budgets (subject, per_day, used, counted_at) VALUES
			('did:web:mls.example.net', 100, 51, now() - interval '86 minutes 24 seconds'),
			('domain:example.net', 200, 210, now()), ('did:web:mls.example.org', 10, 10, now() - interval '2 days')`, `
		INSERT INTO sent_invitations (id, did, ref, last_resort, service, device_id, cipher_suite, convo_id, inviter, epoch,
			created_at, queued_at, next_attempt_at, attempts, last_error)
		SELECT gen_random_uuid(), 'did:plc:bob', int4send(n), false, 'did:web:mls.example.edu', 'phone', 1, gen_random_uuid(),
			'did:plc:alice', 1, now(), now() - interval '1 hour', now(), n, 'status 502 : '
		FROM generate_series(0, 2) AS n`)
	got := lookJSON[operator.Services](t, database, "services", "--dids")
	for i := range got.Budgets {
		got.Budgets[i].Last = time.Time{}
		got.Budgets[i].Share = math.Round(100*got.Budgets[i].Share) / 100
	}
	for i := range got.Homes {
		got.Homes[i].OldestSeconds = math.Floor(got.Homes[i].OldestSeconds / 3600)
	}
	want := operator.Services{
		Budgets: []operator.ServiceBudget{
			{Subject: "domain:example.net", Used: 210, PerDay: 200, Share: 1.05},
			{Subject: "did:web:mls.example.net", Used: 45, PerDay: 100, Share: 0.45},
			{Subject: "did:web:mls.example.org", Used: 0, PerDay: 10},
		},
		Homes: []operator.WaitingHome{{Service: "did:web:mls.example.edu", Waiting: 2, OldestSeconds: 1, Attempts: 2,
			LastError: "status 502 : "}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	text := look(t, database, "services")
	if !strings.Contains(text, "105%") || strings.Contains(text, "mls.example.edu") {
		t.Errorf("as text: %s", text)
	}
}

// Finding S3: inspect prints callers in windows of time. Finding A13: all others have one row, whatever
// their methods.
func TestInspectCallers(t *testing.T) {
	t.Parallel()
	database, _ := inspected(t, `
		INSERT INTO caller_counts (hour, kind, caller_did, nsid, n, seconds, weight)
		SELECT date_trunc('hour', now(), 'UTC') - age * interval '1 hour', kind, did, nsid, n, n * 0.25, n
		FROM (VALUES
			(0, 'first', 'did:plc:alicealice', 'createConvo', 3), (2, 'replay', 'did:plc:alicealice', 'createConvo', 2),
			(0, 'IdempotencyConflict', 'did:plc:alicealice', 'createConvo', 4), (30, 'EpochMismatch', 'did:plc:alicealice',
				'createConvo', 90),
			(0, 'other', '', 'getEpoch', 5), (0, 'RequestInProgress', '', 'addMembers', 1), (1, 'expired', 'did:plc:bobbobbob',
				'addMembers', 1)
		) AS counted (age, kind, did, nsid, n)`)
	thisHour := hour(time.Now())
	for args, want := range map[string][]string{
		"records --by-caller": {
			"caller | method | requests | first | replayed | expired | conflicts | in progress | wrong epoch | mean time | " +
				"total time",
			"did:plc:alic… | createConvo | 9 | 3 | 2 | 0 | 4 | 0 | 0 | 250ms | 2.25s",
			"(all others) | (every method) | 6 | 0 | 0 | 0 | 0 | 1 | 0 | 250ms | 1.5s",
			"did:plc:bobb… | addMembers | 1 | 0 | 0 | 1 | 0 | 0 | 0 | 250ms | 250ms",
		},
		"records --by-caller --since 1s --rows 1": {
			"caller | method | requests | first | replayed | expired | conflicts | in progress | wrong epoch | mean time | " +
				"total time",
			"did:plc:alic… | createConvo | 7 | 3 | 0 | 0 | 4 | 0 | 0 | 250ms | 1.75s",
		},
		"conflicts --by-caller --since 1s --dids": {
			"caller | error | method | count | last hour (UTC)",
			"did:plc:alicealice | IdempotencyConflict | createConvo | 4 | " + thisHour,
			"(all others) | RequestInProgress | (every method) | 1 | " + thisHour,
		},
		"conflicts --by-caller --since 48h --rows 1": {
			"caller | error | method | count | last hour (UTC)",
			"did:plc:alic… | EpochMismatch | createConvo | 90 | " + hour(time.Now().Add(-30*time.Hour)),
		},
		"conflicts --since 1s": {
			"hour (UTC) | error | method | count",
			thisHour + " | IdempotencyConflict | createConvo | 4",
			thisHour + " | RequestInProgress | addMembers | 1",
		},
	} {
		if diff := cmp.Diff(want, lines(look(t, database, strings.Fields(args)...))); diff != "" &&
			hour(time.Now()) == thisHour {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
	launch(t, nil, "--database-url", database, "inspect", "records", "--since", "0s").fails("--since", "must be positive")
	launch(t, nil, "--database-url", database, "inspect", "push", "--by-caller").fails("by-caller")
}

// H10: inspect prints who has used most of which quota, by the limits that are set, and by those that an
// operator has set for one account.
func TestInspectQuotas(t *testing.T) {
	t.Parallel()
	database, _ := inspected(t, `
		INSERT INTO quota_counts (day, subject, quota, n)
		SELECT (now() AT TIME ZONE 'UTC')::date - age, subject, quota, n
		FROM (VALUES
			(0, 'did:plc:alicealice', 'messages-per-day', 47500), (0, 'did:plc:bobbobbob', 'messages-per-day', 500),
			(0, 'did:plc:bobbobbob', 'convos-per-day', 125), (1, 'did:plc:alicealice', 'convos-per-day', 200),
			(0, 'ip:192.0.2.1', 'address-messages-per-day', 4000), (0, 'convo:0192f3a4-0000-7000-8000-000000000000',
				'convo-bytes-per-day', 1024),
			(0, 'did:plc:bobbobbob', 'key-packages-per-day', 7)
		) AS counted (age, subject, quota, n);
		INSERT INTO accounts (did, limit_percent, limit_until, limited_at, limited_by, limited_reason, version) VALUES
			('did:plc:alicealice', 10, now() - interval '1 minute', now(), 'olga', 'floods', 1),
			('did:plc:bobbobbob', 25, NULL, now(), 'olga', 'floods', 1)`)
	today := time.Now().UTC().Format(time.DateOnly)
	for args, want := range map[string][]string{
		"quotas": {
			"subject | quota | used | limit | share",
			"did:plc:bobb… | convos-per-day | 125 | 125 | 100%",
			"did:plc:alic… | messages-per-day | 47500 | 50000 | 95%",
			"did:plc:bobb… | messages-per-day | 500 | 12500 | 4%",
			"ip:192.0.2.1 | address-messages-per-day | 4000 | 10000000 | 0%",
			"convo:0192f3a4-0000-7000-8000-000000000000 | convo-bytes-per-day | 1024 | 4294967296 | 0%",
			"did:plc:bobb… | key-packages-per-day | 7 | - | -",
		},
		"quotas --top 1": {"subject | quota | used | limit | share", "did:plc:bobb… | convos-per-day | 125 | 125 | 100%"},
		"quotas --did did:plc:alicealice": {
			"subject | quota | used | limit | share", "did:plc:alicealice | messages-per-day | 47500 | 50000 | 95%",
		},
		"quotas --did did:plc:carol": {"nothing found for --did did:plc:carol: uses are counted from 00:00 UTC, and " +
			"by the full " +
			"DID; inspect records --by-caller has single methods"},
	} {
		got := launch(t, []string{"MLSD_QUOTA_KEY_PACKAGES=0"},
			append([]string{"--database-url", database, "inspect"}, strings.Fields(args)...)...)
		if err := got.wait(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, lines(got.stdout.String())); diff != "" && time.Now().UTC().Format(time.DateOnly) == today {
			t.Errorf("%s (-want +got):\n%s", args, diff)
		}
	}
}

// Finding S3: inspect prints reservations with their scope and last error, and the records of a
// window.
func TestInspectReservations(t *testing.T) {
	t.Parallel()
	database, _ := inspected(t, `
		INSERT INTO idempotency_keys (caller_did, nsid, scope, key, request_hash, field_hashes, response, created_at,
			expires_at, state, outcome,
			fence, started_at, lease_expires_at, last_error)
		VALUES ('did:plc:alicealice', 'work', 'convo', 'k1', '', '{}', '', now() - interval '2 hours', now() + interval
			'1 day', 'released', 'failure',
				2, now() - interval '1 hour', now(), 'no route to did:plc:bobbobbob'),
			('mlsd', 'mlsd.push', '', 'k2', '', '{}', '', now(), now() + interval '1 day', 'processing', '',
				1, now(), now() + interval '1 day', NULL),
			('mlsd', 'mlsd.push', '', 'k3', '', '{}', '', now(), now() + interval '1 day', 'completed', 'success', 1, now(),
				now(), NULL)`)
	r := lookJSON[operator.Reservations](t, database, "reservations")
	for n := range r.Reservations {
		r.Reservations[n].AgeSeconds, r.Reservations[n].LeaseSeconds = 0, 0
	}
	want := operator.Reservations{Processing: 1, Released: 1, Reservations: []operator.Reservation{
		{Method: "mlsd.push", Key: "k2", Caller: "mlsd", State: "processing", Fence: 1},
		{Method: "work", Scope: "convo", Key: "k1", Caller: "did:plc:alic…", State: "released", Fence: 2,
			LastError: "no route to did:…"},
	}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	text := look(t, database, "reservations")
	for _, part := range []string{
		`processing +1\n`, `stuck +0\n`, `released +1\n`, `method +scope +key +caller +age +fence +lease +last error\n`,
		`mlsd\.push +- +k2 +mlsd +[0-9]+s +1 +held, 2[34]h[0-9ms]+ left +-\n`,
		`work +convo +k1 +did:plc:alic… +1h0m[0-9]+s +2 +released +no route to did:…\n`,
	} {
		if !regexp.MustCompile(part).MatchString(text) {
			t.Errorf("%s is not in\n%s", part, text)
		}
	}
	for since, want := range map[string]int{"1h": 2, "3h": 3} {
		if n := len(lookJSON[operator.RecordCounts](t, database, "records", "--since", since).Records); n != want {
			t.Errorf("records since %s: %d rows, want %d", since, n, want)
		}
	}
}

// Finding S5: the lifetimes that are set are those of new records, and inspect prints them.
func TestLifetimesAreSet(t *testing.T) {
	t.Parallel()
	database, db := inspected(t)
	lifetimes := []string{"--idempotency-ttl", "createConvo=2h,getKeyPackages=45m", "--idempotency-lease", "push=30s"}
	w := newWorld(t)
	s := boot(t, nil, w.flags(append(lifetimes, "--database-url", database)...)...)
	w.use(s.admin, s.public)
	alice, bob := w.user(), w.user()
	alice.create(bob)
	bob.publication().must().ok()
	s.stop()
	for method, want := range map[string]time.Duration{mlsapi.NSIDCreateConvo: 2 * time.Hour,
		mlsapi.NSIDPublishKeyPackage: 24 * time.Hour} {
		var life time.Duration
		if err := db.QueryRow(t.Context(), `SELECT max(expires_at - created_at) FROM idempotency_keys WHERE nsid = $1`,
			method).Scan(&life); err != nil {
			t.Fatal(err)
		}
		if off := (life - want).Abs(); off > time.Second {
			t.Errorf("a record of %s lasts %s, want %s", method, life, want)
		}
	}
	if _, err := db.Exec(t.Context(), `DELETE FROM idempotency_keys`); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"method | life | at least | lease | records | mean life | expired, kept | next expires in",
		"(every other) | 7d0h | - | 5m0s | 0 | - | 0 | -",
		"blue.catbird.mls.acceptConvo | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.acceptInvitation | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.addMembers | 7d0h | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.blockActor | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.completeAttachment | 7d0h | 2d0h | 1m0s | 0 | - | 0 | -",
		"blue.catbird.mls.createAttachment | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.createConvo | 2h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.declineInvitation | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.deleteAttachment | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.demoteAdmin | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.eraseMyAccount | 1h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.getKeyPackages | 45m0s | 30m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.leaveConvo | 7d0h | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.processExternalCommit | 7d0h | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.promoteAdmin | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.publishKeyPackage | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.publishKeyPackages | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.registerPushTarget | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.reportConvo | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.resetConvo | 7d0h | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.setCursorPolicy | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.setInvitationPolicy | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.submitCommit | 7d0h | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.unblockActor | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.unregisterPushTarget | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.updateConvo | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"blue.catbird.mls.withdrawKeyPackages | 24h0m0s | 1h0m0s | - | 0 | - | 0 | -",
		"mlsd.invitation | 24h0m0s | 2h0m0s | 1m0s | 0 | - | 0 | -",
		"mlsd.push | 24h0m0s | 2h0m0s | 30s | 0 | - | 0 | -",
	}
	stdout := launch(t, nil, append(lifetimes, "--database-url", database, "inspect", "lifetimes")...)
	if err := stdout.wait(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, lines(stdout.stdout.String())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A request id leads to what became of the request, once the node that served it has written it.
func TestInspectRequest(t *testing.T) {
	t.Parallel()
	database, _ := inspected(t)
	w := newWorld(t)
	s := boot(t, nil, w.flags("--database-url", database, "--request-sample", "1", "--log-format", "json")...)
	w.use(s.admin, s.public)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	hello, other := alice.message(c, "hello"), alice.message(c, "other")
	other.IdempotencyKey = hello.IdempotencyKey
	sent := alice.procedure(mlsapi.NSIDSendMessage, hello).must()
	sent.ok()
	refused := alice.procedure(mlsapi.NSIDSendMessage, other).must()
	refused.fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
	s.stop() // it writes at its end

	id := refused.header.Get("X-Request-Id")
	text := look(t, database, "request", id)
	for _, part := range []string{
		`request +` + id + `\n`, `method +blue.catbird.mls.sendMessage\n`, `caller +did:[a-z]+:[A-Za-z0-9]{4}…\n`,
		`convo +` + c.id + `\n`,
		`answer +409 IdempotencyConflict: the idempotency key was used for another request; differing fields: ciphertext`,
		`why +The caller had used this key for another request of sendMessage, at 20[-0-9 :.]+ UTC, [0-9a-zµ.]+ before\. ` +
			`Different in this one: ciphertext\.`,
		`key +` + *hello.IdempotencyKey + `\n`, `log entry +seq 1, epoch 1, 20`,
	} {
		if !regexp.MustCompile(part).MatchString(text) {
			t.Errorf("%s is not in\n%s", part, text)
		}
	}
	for name, args := range map[string][]string{
		"key": {"--key", *hello.IdempotencyKey}, "caller": {"--did", alice.did().String(), "--rows", "2"},
	} {
		var got []int
		for _, r := range lookJSON[operator.Explanations](t, database, append([]string{"request"}, args...)...).Requests {
			got = append(got, r.Status)
		}
		if !slices.Equal(got, []int{http.StatusConflict, http.StatusOK}) {
			t.Errorf("by %s: %v", name, got)
		}
	}
	if all := lookJSON[operator.Explanations](t, database, "request", "--did", alice.did().String(), "--refused",
		"--dids").Requests; len(all) != 1 ||
		all[0].Caller != alice.did().String() {
		t.Errorf("refused: %+v", all)
	}
	if got := look(t, database, "request", "none"); !strings.HasPrefix(got, "nothing found for none: ") {
		t.Errorf("an unknown id: %s", got)
	}
	wantAccessLine(t, s.stderr.String(), id)
}

// wantAccessLine wants the log to have one access line of the request, without a DID.
func wantAccessLine(t *testing.T, log, id string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"msg":"access"`) && strings.Contains(line, `"request":"`+id+`"`) {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 || strings.Contains(lines[0], "did:") ||
		!regexp.MustCompile(`"caller":"[0-9a-f]{12}"`).MatchString(lines[0]) {
		t.Errorf("access lines of the request: %q", lines)
	}
}

// The admin listener answers the questions of inspect as the command does.
func TestQuestionsOfTheListener(t *testing.T) {
	t.Parallel()
	w, _, database := serverOfEverything(t)
	ask := func(path string) (status int, body string) {
		t.Helper()
		return fetch(t, w.admin+"/admin/inspect/"+path)
	}
	did := regexp.MustCompile(`did:[a-z]+:[A-Za-z0-9]{5}`)
	for _, m := range operator.Methods() {
		if !m.Question() {
			continue
		}
		if status, body := ask(m.Verb); status != http.StatusOK || !strings.HasPrefix(body, "{") || did.MatchString(body) {
			t.Errorf("%s: %d %s", m.Verb, status, body)
		}
	}
	for path, args := range map[string][]string{
		"welcomes?failed=true&rows=1":     {"welcomes", "--failed", "--rows", "1"},
		"keypackages?dids=true":           {"keypackages", "--dids"},
		"records?by-caller=true&since=1h": {"records", "--by-caller", "--since", "1h"},
	} {
		ages := cmpopts.IgnoreMapEntries(func(name string, _ any) bool {
			return strings.HasSuffix(name, "Seconds") ||
				name == "seconds"
		})
		// A worker of the server can write between the two.
		await.Until(t, "the command and the listener answer alike to "+path, func() bool {
			_, got := ask(path)
			want := lookJSON[map[string]any](t, database, args...)
			return cmp.Equal(want, read[map[string]any](t, []byte(got)), ages)
		})
	}
	for _, path := range []string{"welcomes?state=lost", "records?rows=0", "records?since=x", "disputes?convo=x",
		"push?by-caller=true"} {
		if status, body := ask(path); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// A question that finds nothing says for what it looked, and where else to look. Questions that
// count always have an answer.
func TestInspectFindsNothing(t *testing.T) {
	t.Parallel()
	database := pgtest.URL(t)
	const did, id = "did:plc:ewvi7nxzyoun6zhxrhs64oiz", "0192f3a4-5b6c-7d8e-9f01-23456789abcd"
	asked := map[string]bool{}
	for args, want := range map[string]string{
		"request " + id:            "nothing found for " + id + ": ",
		"request --did " + did:     "nothing found for --did " + did + ": ",
		"request --refused":        "nothing found for --refused: ",
		"records --since 24h":      "nothing found for --since 24h: ",
		"conflicts":                "nothing found: ",
		"quotas --did " + did:      "nothing found for --did " + did + ": ",
		"disputes " + id:           "nothing found for " + id + ": ",
		"audit " + id:              "nothing found for " + id + ": ",
		"audit":                    "nothing found: ",
		"actions " + did:           "nothing found for " + did + ": ",
		"push":                     "nothing found: ",
		"services":                 "nothing found: ",
		"reservations":             "processing",
		"welcomes --failed":        "oldest in flight",
		"keypackages":              "DIDs below the threshold",
		"lifetimes":                "method",
		"conflicts --by-caller":    "nothing found for --by-caller: ",
		"records --by-caller":      "nothing found for --by-caller: ",
		"disputes --rows 3 --dids": "nothing found for --dids --rows 3: ",
	} {
		verb, _, _ := strings.Cut(args, " ")
		asked[verb] = true
		got := look(t, database, strings.Fields(args)...)
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
		if strings.HasPrefix(want, "nothing") && !strings.Contains(got, "inspect ") && !strings.Contains(got, "mlsd admin") &&
			!strings.Contains(got, "the log ") {
			t.Errorf("%s: %q names no other place", args, got)
		}
	}
	for _, m := range operator.Methods() {
		if m.Question() && (!asked[m.Verb] || strings.HasSuffix(m.Nothing(operator.Call{}), ": ")) {
			t.Errorf("inspect %s was not asked, or has no other place to name", m.Verb)
		}
	}
}
