package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/api/mlsapi"
	"mlsd/internal/await"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
)

// secretive is a server with one of everything that gives a right, and all that has left it.
type secretive struct {
	*world
	server  *server
	db      *pgxpool.Pool
	traces  *traces
	secrets map[string]string // by what they are

	mu     sync.Mutex
	pushed strings.Builder // what webhooks got
}

const adminsToken, readsToken, metersToken = "the-admin-token-of-this-test", "the-read-token-of-this-test",
	"the-metrics-token-of-this-test"

func newSecretive(t *testing.T) *secretive {
	t.Helper()
	s := &secretive{world: newWorld(t), traces: newTraces(t), secrets: map[string]string{
		"admin token": adminsToken, "read token": readsToken, "metrics token": metersToken,
	}}
	database := pgtest.URL(t)
	s.server = boot(t, []string{"MLSD_ADMIN_TOKEN=" + adminsToken, "MLSD_ADMIN_READ_TOKEN=" + readsToken,
		"MLSD_ADMIN_METRICS_TOKEN=" + metersToken, "MLSD_REQUEST_SAMPLE=1"},
		s.flags("--database-url", database, "--report-key", reportKey, "--allow-loopback=true", "--log-level", "debug",
			"--traces-url", s.traces.URL, "--traces-sample", "1")...)
	s.use(s.server.admin, s.server.public)
	var err error
	if s.db, err = pgpool.OpenMaintenance(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.db.Close)
	return s
}

// webhook is the URL of a webhook.
func (s *secretive) webhook() string {
	h := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // a lost call comes again
		s.mu.Lock()
		fmt.Fprintln(&s.pushed, r.Header, string(body))
		s.mu.Unlock()
	}))
	s.t.Cleanup(h.Close)
	return h.URL + "/"
}

// device is another device of the user.
func (u *user) device() *user {
	return &user{Identity: u.Identity, Device: mlstest.NewDevice(u.w.t, u.did().String()), w: u.w, asked: u.asked}
}

// issue makes a device ask for one of everything. It returns its session.
func (s *secretive) issue(u *user, name string) string {
	s.t.Helper()
	session := u.session()
	s.secrets[name+": session"], s.secrets[name+": refresh token"] = session.Session, session.RefreshToken
	url := s.webhook()
	target := read[mlsapi.RegisterPushTargetOutput](s.t, u.procedure(mlsapi.NSIDRegisterPushTarget,
		&mlsapi.RegisterPushTargetInput{DeviceID: u.deviceID(), Kind: "webhook", URL: &url, IdempotencyKey: newKey()},
	).must().ok())
	s.secrets[name+": webhook's secret"] = *target.Secret
	ticket := read[mlsapi.GetSubscriptionTicketOutput](s.t, u.procedure(mlsapi.NSIDGetSubscriptionTicket,
		struct{}{}).must().ok())
	s.secrets[name+": ticket"] = ticket.Ticket
	confirmation := read[mlsapi.EraseMyAccountOutput](s.t, u.procedure(mlsapi.NSIDEraseMyAccount,
		&mlsapi.EraseMyAccountInput{IdempotencyKey: newKey()}).must().ok())
	s.secrets[name+": confirmation"] = *confirmation.ConfirmationToken
	return session.Session
}

// keep adds the secrets that a statement returns, as bytes, in each form in which they can leave.
func (s *secretive) keep(name, sql string, args ...any) {
	s.t.Helper()
	rows, err := s.db.Query(s.t.Context(), sql, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	n := 0
	for rows.Next() {
		var secret []byte
		if err := rows.Scan(&secret); err != nil {
			s.t.Fatal(err)
		}
		n++
		s.secrets[fmt.Sprint(name, " ", n, " in hex")] = hex.EncodeToString(secret)
		s.secrets[fmt.Sprint(name, " ", n, " in base64")] = base64.RawStdEncoding.EncodeToString(secret)
		s.secrets[fmt.Sprint(name, " ", n, " in base64url")] = base64.RawURLEncoding.EncodeToString(secret)
	}
	if rows.Err() != nil || n == 0 {
		s.t.Fatalf("there is no %s: %v", name, rows.Err())
	}
}

// wantNone fails the test if a text has a secret. It must have something.
func (s *secretive) wantNone(where, text string, has ...string) {
	s.t.Helper()
	for name, secret := range s.secrets {
		if len(secret) < 8 {
			s.t.Fatalf("%s is %q", name, secret)
		}
		if strings.Contains(text, secret) {
			s.t.Errorf("%s has %s", where, name)
		}
	}
	for _, part := range has {
		if !strings.Contains(text, part) {
			s.t.Errorf("%s lacks %q, so that it shows nothing", where, part)
		}
	}
}

// exported is all that exportMyData gives under an authorization.
func (s *secretive) exported(bearer func() string) string {
	s.t.Helper()
	var all strings.Builder
	for cursor := ""; ; {
		r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet,
			s.public+"/xrpc/"+mlsapi.NSIDExportMyData+"?limit=500&cursor="+cursor, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if cursor == "" {
			r.URL.RawQuery = "limit=500"
		}
		r.Header.Set("Authorization", bearer())
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			s.t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if resp.Body.Close() != nil || err != nil || resp.StatusCode != http.StatusOK {
			s.t.Fatalf("%d %s, %v", resp.StatusCode, body, err)
		}
		page := read[mlsapi.ExportMyDataOutput](s.t, body)
		for _, row := range page.Records {
			fmt.Fprintln(&all, row.Type, row.Data)
		}
		if page.Cursor == nil {
			return all.String()
		}
		decoded, err := base64.RawURLEncoding.DecodeString(*page.Cursor)
		if err != nil {
			s.t.Fatal(err)
		}
		fmt.Fprintln(&all, "cursor", string(decoded))
		cursor = *page.Cursor
	}
}

// operators is what an operator's export gives.
func (s *secretive) operators(u *user) string {
	s.t.Helper()
	c := launch(s.t, []string{"MLSD_ADMIN_TOKEN=" + adminsToken}, "--admin-url", s.admin, "admin", "--operator", "olga",
		"--reason", "ticket 7", "account", "export", u.did().String())
	if err := c.wait(); err != nil {
		s.t.Fatal(err)
	}
	return c.stdout.String()
}

// metrics is the page of metrics.
func (s *secretive) metrics() string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.admin+"/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+metersToken)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	page, err := io.ReadAll(resp.Body)
	if resp.Body.Close() != nil || err != nil {
		s.t.Fatal(err)
	}
	return string(page)
}

// Finding S1. Nothing that the server has issued, and nothing with which it signs, leaves by an export,
// any caller of an export, or by the log, traces, metrics or calls of webhooks.
func TestNoSecretLeaves(t *testing.T) {
	t.Parallel()
	s := newSecretive(t)
	alice, bob, dave := s.user(), s.user(), s.user()
	laptop := bob.device()
	phoneSession, laptopSession := s.issue(bob, "phone"), s.issue(laptop, "laptop")
	aliceSession := s.issue(alice, "alice")
	c := alice.create(bob)
	for _, u := range []*user{bob, alice} {
		u.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.id}).must()
		u.procedure(mlsapi.NSIDSendMessage, u.message(c, "hello")).must().ok()
	}
	bob.create(dave) // an invitation that nobody has answered
	alice.query(mlsapi.NSIDGetLogHead, "convoId", c.id, "senders", alice.did().String()).must().ok()
	erasing := launch(t, []string{"MLSD_ADMIN_TOKEN=" + adminsToken}, "--admin-url", s.admin, "admin", "--operator",
		"olga", "--reason", "ticket 7", "account", "erase", dave.did().String())
	if err := erasing.wait(); err != nil {
		t.Fatal(err)
	}
	s.keep("session key", `SELECT key FROM session_keys`)
	s.keep("log key", `SELECT seed FROM log_keys`)
	s.keep("hash key", `SELECT hash_key FROM installation`)
	s.keep("erasure's salt", `SELECT salt FROM erasures`)
	s.keep("ticket's hash", `SELECT hash FROM subscription_tickets`)
	s.keep("confirmation's hash", `SELECT hash FROM erasure_confirmations`)
	salts := func(u *user) {
		s.keep("salt of "+u.did().String(), `SELECT salt FROM log_senders WHERE did = $1`, u.did())
	}
	var records int
	err := s.db.QueryRow(t.Context(), `
		SELECT count(*) FROM idempotency_keys, unnest($1::text[]) AS of (secret)
		WHERE position(convert_to(secret, 'UTF8') IN response) > 0`,
		[]string{s.secrets["phone: webhook's secret"], s.secrets["laptop: webhook's secret"],
			s.secrets["phone: confirmation"], s.secrets["laptop: confirmation"]}).Scan(&records)
	if err != nil || records != 4 {
		t.Fatalf("%d records have a secret, %v", records, err)
	}
	await.Until(t, "the requests are recorded", func() bool {
		var n int
		err := s.db.QueryRow(t.Context(), `SELECT count(*) FROM requests WHERE caller_did = $1`, bob.did()).Scan(&n)
		return err == nil && n > 0
	})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s.secrets["host name"] = "\"node\": \"" + host
	issued := len(s.secrets)
	if issued < 33 {
		t.Errorf("%d secrets only", issued)
	}
	salts(alice) // bob may not see it in an export, and alice may
	for name, bearer := range map[string]func() string{
		"the export under the phone's session":  func() string { return "Bearer " + phoneSession },
		"the export under the laptop's session": func() string { return "Bearer " + laptopSession },
		"the export with a service-auth token": func() string {
			return bob.Authorization(t, serviceDID, mlsapi.NSIDExportMyData, time.Now())
		},
	} {
		s.wantNone(name, s.exported(bearer), "push_targets", "erasure_confirmations", "subscription_tickets", "sessions",
			"requests", mlsapi.NSIDRegisterPushTarget, mlsapi.NSIDEraseMyAccount, c.id)
	}
	s.wantNone("the operator's export", s.operators(bob), "push_targets", "sessions", "idempotency_keys")
	s.wantNone("the operator's export of an account that is being erased", s.operators(dave), "erasures")
	for name := range s.secrets {
		if strings.HasPrefix(name, "salt of") {
			delete(s.secrets, name)
		}
	}
	s.wantNone("alice's export", s.exported(func() string { return "Bearer " + aliceSession }), "push_targets")
	await.Until(t, "webhooks are called", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.pushed.String(), `"message"`)
	})
	s.wantNone("metrics", s.metrics(), "mlsd_request_seconds")
	s.server.stop() // sends the spans that wait
	s.wantNone("webhooks", s.pushed.String(), "X-Mlsd-Signature", `"message"`)
	s.wantNone("the log", s.server.stderr.String(), mlsapi.NSIDExportMyData)
	s.wantNone("traces", fmt.Sprint(s.traces.spans), mlsapi.NSIDEraseMyAccount, "push call")
	t.Logf("%d secrets issued, 0 found", issued)
}

// Finding S2. Who has left a convo, or was removed, sees of it what it was when they left: their export
// does not change, whatever the members do.
func TestFormerMemberSeesNothingMove(t *testing.T) {
	t.Parallel()
	s := newSecretive(t)
	alice, bob, carol := s.user(), s.user(), s.user()
	c := carol.create(alice, bob)
	for _, u := range []*user{alice, bob} {
		u.procedure(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.id}).must()
	}
	carol.procedure(mlsapi.NSIDSendMessage, carol.message(c, "hello")).must().ok()
	do := func(sql string, args ...any) {
		t.Helper()
		if tag, err := s.db.Exec(t.Context(), sql, args...); err != nil || tag.RowsAffected() == 0 {
			t.Fatalf("%v, %v", tag, err)
		}
	}
	const group = `INSERT INTO public_groups (convo_id, epoch, state, vouched_by) VALUES ($1, $2, '', $3)`
	// What carol has done in it and others can move: a disputed commit, a report, a file, a GroupInfo.
	do(`INSERT INTO disputes (convo_id, epoch, committer, state, voices, reports, began_at, ends_at)
		VALUES ($1, 1, $2, 'open', 2, 1, now() - interval '1 hour', now() - interval '50 minutes')`, c.id, carol.did())
	do(`INSERT INTO commit_reports (convo_id, epoch, did, reason, reported_at) VALUES ($1, 1, $2, 'other', now())`, c.id,
		carol.did())
	do(`INSERT INTO attachments (id, convo_id, sender_did, size, sha256, part_size, state, seq, kept_from, created_at)
		VALUES (gen_random_uuid(), $1, $2, 1, sha256(''), 1, 'complete', 1, now(), now())`, c.id, carol.did())
	do(group, c.id, 99, carol.did())
	shown := func() (all []string) {
		for line := range strings.Lines(s.exported(func() string {
			return carol.Authorization(t, serviceDID, mlsapi.NSIDExportMyData, time.Now())
		})) {
			if strings.Contains(line, c.id) && !strings.HasPrefix(line, "requests ") {
				all = append(all, line)
			}
		}
		return all
	}
	member := strings.Join(shown(), "")
	for _, value := range []string{`"last_seq": 1`, `"epoch": 1`, `"last_message_at"`, `"ended_at"`, `"settled_at"`,
		`"kept_from"`, "public_groups "} {
		if !strings.Contains(member, value) {
			t.Errorf("a member's export has no %s", value)
		}
	}
	carol.procedure(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).must().ok()
	await.Until(t, "the outbox is empty", func() bool {
		var waits bool
		if err := s.db.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM outbox)`).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return !waits
	})
	before := shown()
	for range 3 {
		alice.procedure(mlsapi.NSIDSendMessage, alice.message(c, "behind carol's back")).must().ok()
		bob.addition(c, s.user()).must().ok()
		c.epoch++
	}
	do(`UPDATE disputes SET state = 'ended', ended_at = now() WHERE convo_id = $1`, c.id)
	do(`UPDATE commit_reports SET settled_at = now() WHERE convo_id = $1`, c.id)
	do(`UPDATE attachments SET seq = 4, kept_from = now() WHERE convo_id = $1`, c.id)
	do(group, c.id, 100, carol.did())
	do(`INSERT INTO events (day, stream_seq, kind, convo_id, size, detail, created_at)
		SELECT day, stream_seq + 1000, 7, convo_id, 0, jsonb_build_object('change', 'ended', 'by', $2::text), now()
		FROM events WHERE convo_id = $1 LIMIT 1`, c.id, carol.did())
	do(`UPDATE convos SET closed_at = now() WHERE id = $1`, c.id)
	if diff := cmp.Diff(before, shown()); diff != "" {
		t.Errorf("carol has left, and sees what moves (-before +after):\n%s", diff)
	}
	if !strings.Contains(strings.Join(before, ""), "convos created ") {
		t.Error("carol does not see that it has created the convo")
	}
}
