package console_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/convos"
	"mlsd/internal/pgtest"
	"mlsd/internal/worker"
	"mlsd/operator"
	"mlsd/operator/console"
	"mlsd/operator/invariants"
	"mlsd/people/accounts"
	"mlsd/people/quota"
)

const (
	writeToken = "the-admin-token-of-this-test"
	readToken  = "the-read-token-of-this-test"

	alice      = "did:plc:ewvi7nxzyoun6zhxrhs64oiz"
	aliceShort = "did:plc:ewvi…64oiz"
	markup     = `<script>alert("1")</script>`
)

// paths are the pages of the console.
var paths = []string{
	"/", "/queues", "/checks", "/checks?convo=", "/actions",
	"/welcomes", "/welcomes?state=available", "/welcomes?state=failed", "/idempotency", "/idempotency?request=r1",
	"/idempotency?did=" + alice,
	"/reports", "/reports?id=" + reported, "/convo", "/convo?id=" + planted, "/account", "/account?did=" + alice,
}

// bench is a console on a database of its own, and a browser.
type bench struct {
	t       *testing.T
	db      *pgxpool.Pool
	console *console.Console
	checks  *invariants.Checker
	read    atomic.Int64 // how often the metrics of the node were read
	sends   prometheus.Counter
	up      prometheus.Gauge // 1: the database can be read
	server  *httptest.Server
	cookie  *http.Cookie // nil: the browser has not logged in
}

func newBench(t *testing.T, tokens operator.Tokens) *bench {
	t.Helper()
	b := &bench{t: t, db: pgtest.Database(t)}
	log := slog.New(slog.DiscardHandler)
	access, err := operator.NewAccess("127.0.0.1:0", nil, tokens, log)
	if err != nil {
		t.Fatal(err)
	}
	node, stored := prometheus.NewRegistry(), prometheus.NewRegistry()
	sends := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mlsd_idempotency_total"}, []string{"nsid", "outcome"})
	b.sends = sends.WithLabelValues("blue.catbird.mls.sendMessage", "first")
	b.up = prometheus.NewGauge(prometheus.GaugeOpts{Name: "mlsd_database_up"})
	b.up.Set(1)
	node.MustRegister(sends)
	stored.MustRegister(b.up)
	node.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "read_total"},
		func() float64 { return float64(b.read.Add(1)) }))
	b.checks = invariants.NewChecker(b.db)
	b.console, err = console.New(console.Config{
		Access: access, DB: b.db, Log: log, Version: "test", Node: node, Stored: stored, NodeID: uuid.New, Checks: b.checks,
		Rounds:    worker.NewRounds(worker.Clock{}),
		Lifetimes: api.Lifetimes(), Quotas: quota.Defaults(),
		Operator: operator.New(operator.Config{DB: b.db, Log: log, Accounts: accounts.NewStore(0, convos.HandOver),
			Changed: func() {}, Wake: func() {}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	b.console.Handle(func(pattern string, level operator.Level, h http.Handler) {
		mux.Handle(pattern, access.Protect(level, h))
	})
	b.server = httptest.NewServer(mux)
	t.Cleanup(b.server.Close)
	return b
}

// run lets the console sample and check until the end of the test.
func (b *bench) run() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.console.Run(ctx)
	}()
	b.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// answer is what the browser got.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request as a browser does. form is nil for a GET.
func (b *bench) do(path string, form url.Values) answer {
	b.t.Helper()
	verb, body := http.MethodGet, io.Reader(nil)
	if form != nil {
		verb, body = http.MethodPost, strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(b.t.Context(), verb, b.server.URL+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", b.server.URL)
	}
	if b.cookie != nil {
		req.AddCookie(b.cookie)
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // redirects are not followed
	if err != nil {
		b.t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		b.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// get gets a page.
func (b *bench) get(path string) string {
	b.t.Helper()
	a := b.do(path, nil)
	if a.status != http.StatusOK {
		b.t.Fatalf("%s: %d %s", path, a.status, a.body)
	}
	return a.body
}

// logIn gives the browser a session.
func (b *bench) logIn(token string) {
	b.t.Helper()
	a := b.do("/login", url.Values{"token": {token}, "next": {"/queues"}})
	cookies := (&http.Response{Header: a.header}).Cookies()
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/queues" || len(cookies) != 1 {
		b.t.Fatalf("to log in: %d %v", a.status, a.header)
	}
	b.cookie = cookies[0]
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// recorded returns the actions in the record, the oldest first, as "action subject operator reason
// outcome".
func (b *bench) recorded() (all []string) {
	b.t.Helper()
	rows, err := b.db.Query(b.t.Context(), `
		SELECT concat_ws(' | ', action, subject, operator, reason, outcome) FROM admin_actions ORDER BY id`)
	if err != nil {
		b.t.Fatal(err)
	}
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			b.t.Fatal(err)
		}
		all = append(all, one)
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
	return all
}

// plant makes push jobs of alice, and an action, with markup in every text.
func (b *bench) plant() {
	b.t.Helper()
	b.exec(`INSERT INTO admin_actions (at, operator, action, subject, reason, outcome) VALUES (now(), $1, 'account.block',
			$2, $1 || $2, 'done')`, markup, alice)
	for _, state := range []string{"pending", "dead"} {
		b.exec(`
			INSERT INTO push_jobs (did, id, device_id, state, reason, next_attempt_at, last_error, created_at, ended_at)
			VALUES ($1, gen_random_uuid(), $2, $3, 'message', now() + interval '1 h', $2 || $1, now(), CASE WHEN $3 = 'dead' THEN
				now() END)`,
			alice, markup, state)
	}
	b.exec(`
		INSERT INTO invitation_budgets (subject, per_day, used, counted_at) VALUES ('domain:example.net', 10, 20, now())`)
	b.exec(`
		INSERT INTO sent_invitations (id, did, ref, last_resort, service, device_id, cipher_suite, convo_id, inviter, epoch,
			created_at, queued_at, next_attempt_at, attempts, last_error)
		VALUES (gen_random_uuid(), $1, '', false, 'did:web:mls.example.net', 'phone', 1, gen_random_uuid(), $1, 1, now(),
			now(), now(), 2, $2 || $1)`, alice, markup)
	b.plantConvo(planted, alice, "did:plc:bobbobbobbobbobbobbobbob", 3)
	b.plantReports(2)
}

// reported is the first of the reports of abuse.
const reported = "0192f3a4-0000-7000-8000-000000000101"

// plantReports makes reports of alice about the convo, the second of every two closed, with markup
// in every text.
func (b *bench) plantReports(n int) {
	b.t.Helper()
	b.exec(`
		INSERT INTO abuse_reports (id, convo_id, reporter, reason, key_id, binding, digest, sealed, reported_at, state,
			closed_at, closed_by, note)
		SELECT ('0192f3a4-0000-7000-8000-000000000' || lpad(to_hex(256 + n), 3, '0'))::uuid, $1, $2, $3, $3,
			sha256(n::text::bytea), sha256(''), 'SECRETS',
			now() - (100 - n) * interval '1 hour', CASE n % 2 WHEN 1 THEN 'open' ELSE 'closed' END,
			CASE n % 2 WHEN 0 THEN now() END, CASE n % 2 WHEN 0 THEN $3 END, CASE n % 2 WHEN 0 THEN $3 || $2 END
		FROM generate_series(1, $4::integer) AS of (n)`, planted, alice, markup, n)
}
