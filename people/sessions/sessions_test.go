package sessions_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/people/sessions"
)

const device = "0011223344556677889900112233445566778899001122334455667788990011"

// fixture is nodes on one database.
type fixture struct {
	t         testing.TB
	db        *pgxpool.Pool
	directory *authtest.Directory
	now       time.Time
	log       bytes.Buffer
}

func newFixture(t testing.TB) *fixture {
	return &fixture{t: t, db: pgtest.Database(t), directory: authtest.NewDirectory(t), now: time.Now()}
}

// node is a node that has read everything.
func (f *fixture) node(changes ...func(*sessions.Config)) *sessions.Service {
	f.t.Helper()
	c := sessions.Config{
		DB: f.db, Identities: f.directory, Log: slog.New(slog.NewTextHandler(&f.log, nil)),
		Now: func() time.Time { return f.now },
	}
	for _, change := range changes {
		change(&c)
	}
	s := sessions.New(c)
	f.check(s.Load(context.Background()))
	return s
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	_, err := f.db.Exec(context.Background(), sql, args...)
	f.check(err)
}

func (f *fixture) count(sql string) (n int) {
	f.t.Helper()
	f.check(f.db.QueryRow(context.Background(), sql).Scan(&n))
	return n
}

// buy buys a session of an account on a node.
func (f *fixture) buy(s *sessions.Service, id *authtest.Identity) string {
	f.t.Helper()
	g, err := s.Create(context.Background(), id.DID, "198.51.100.1", device, id.PublicKey(f.t))
	f.check(err)
	return g.Bearer
}

func (f *fixture) account() *authtest.Identity {
	id := authtest.NewIdentity(f.t)
	f.directory.Publish(id.DID, id.PublicKey(f.t))
	return id
}

// refuses expects a node to refuse a session because of the token itself, with a reason.
func (f *fixture) refuses(s *sessions.Service, bearer, reason string) {
	f.t.Helper()
	_, err := s.Verify(context.Background(), bearer)
	var invalid *serviceauth.InvalidError
	if !errors.As(err, &invalid) || !strings.Contains(invalid.Message(), reason) {
		f.t.Errorf("got %v, want %q", err, reason)
	}
}

func (f *fixture) accepts(s *sessions.Service, bearer string) {
	f.t.Helper()
	if _, err := s.Verify(context.Background(), bearer); err != nil {
		f.t.Error(err)
	}
}

// grow makes everything in the database older.
func (f *fixture) grow(by time.Duration) {
	f.t.Helper()
	f.exec(`UPDATE session_keys SET created_at = created_at - $1::interval`, by)
	f.exec(`UPDATE sessions SET issued_at = issued_at - $1::interval, expires_at = expires_at - $1::interval, ends_at =
			ends_at - $1::interval`, by)
}

// The key changes every day. Nodes sign with the new one once all can have read it, and the old one
// is deleted when nothing that it has signed can be good any more.
func TestRotation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.node(), f.node()
	f.check(b.Rotate(t.Context()))
	if n := f.count(`SELECT count(*) FROM session_keys`); n != 1 {
		t.Fatalf("%d keys at first", n)
	}
	id := f.account()
	f.grow(24 * time.Hour)
	old := f.buy(a, id)
	for _, s := range []*sessions.Service{a, b} {
		f.check(s.Rotate(t.Context()))
	}
	if n := f.count(`SELECT count(*) FROM session_keys`); n != 2 {
		t.Fatalf("%d keys after a day", n)
	}
	f.check(a.RunOnce(t.Context()))
	f.accepts(b, f.buy(a, id)) // b has not read the new key, so a does not sign with it
	f.check(b.RunOnce(t.Context()))
	f.accepts(b, old)

	f.now = f.now.Add(11 * time.Second)
	f.grow(11 * time.Second)
	f.check(a.RunOnce(t.Context()))
	f.check(b.RunOnce(t.Context()))
	new := f.buy(a, id)
	f.accepts(b, new)
	f.exec(`UPDATE session_keys SET created_at = created_at - interval '64 minutes'`)
	f.check(a.Rotate(t.Context()))
	// its last bearer could be good on a node whose clock is behind
	if n := f.count(`SELECT count(*) FROM session_keys`); n != 2 {
		t.Errorf("%d keys after 64 minutes", n)
	}
	f.exec(`UPDATE session_keys SET created_at = created_at - interval '2 minutes'`)
	f.check(a.Rotate(t.Context()))
	f.check(a.RunOnce(t.Context()))
	f.refuses(a, old, "too old")
	f.accepts(a, new)
}

// G15: the pages and the lexicon say how long a node can still take a session that has ended elsewhere:
// trustFor, and not Interval.
func TestPagesSayHowLongNodesTrust(t *testing.T) {
	t.Parallel()
	if sessions.TrustFor != 5*time.Second || sessions.Interval >= time.Second {
		t.Errorf("nodes read every %s, and trust for %s", sessions.Interval, sessions.TrustFor)
	}
	for _, page := range []string{"docs/clients/SESSIONS.md", "lexicons/blue/catbird/mls/deleteSession.json"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.ToLower(string(text)),
			"usually within a second, and after five at the latest, no node") {
			t.Errorf("%s says something else", page)
		}
	}
}

// A node that has not heard of ends for trustFor says that it does not know.
func TestStaleNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.node()
	bearer := f.buy(s, f.account())
	f.now = f.now.Add(sessions.TrustFor)
	f.accepts(s, bearer)
	f.now = f.now.Add(time.Millisecond)
	if _, err := s.Verify(t.Context(), bearer); !errors.Is(err, serviceauth.ErrUnavailable) {
		t.Errorf("a stale node: %v", err)
	}
	fresh := sessions.New(sessions.Config{DB: f.db, Identities: f.directory, Log: slog.New(slog.DiscardHandler)})
	if _, err := fresh.Verify(t.Context(), bearer); err == nil {
		t.Error("a node that has read nothing accepts a session")
	}
}

// If the database goes back to an earlier state, all sessions end on every node that notices: the
// end of one can be lost.
func TestDatabaseGoesBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.node(), f.node()
	id := f.account()
	open, ended := f.buy(a, id), f.buy(a, id)
	session, err := a.Verify(t.Context(), ended)
	f.check(err)
	f.check(sessions.EndSession(t.Context(), f.db, session))
	f.check(a.RunOnce(t.Context()))
	f.check(b.RunOnce(t.Context()))
	f.refuses(b, ended, "ended")

	watched := make(chan error, 1)
	session, err = b.Verify(t.Context(), open)
	f.check(err)
	defer b.Watch(session, func(why error) { watched <- why })()
	f.exec(`UPDATE session_clock SET version = version - 1`)
	f.exec(`UPDATE sessions SET ended_version = NULL`)
	f.check(b.RunOnce(t.Context()))
	f.check(a.RunOnce(t.Context()))
	select {
	case <-watched:
	default:
		t.Error("who watches the session does not learn of its end")
	}
	for _, s := range []*sessions.Service{a, b} {
		f.refuses(s, ended, "not one of this service")
		f.refuses(s, open, "not one of this service")
	}
	again := f.buy(b, id)
	f.accepts(a, again)
	f.check(sessions.Restored(t.Context(), f.db))
	f.check(a.RunOnce(t.Context()))
	f.refuses(a, again, "not one of this service")
}

// counted is a database that counts its queries of one row.
type counted struct {
	sessions.DB
	asked int
}

func (c *counted) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	c.asked++
	return c.DB.QueryRow(ctx, sql, args...)
}

// S5: nobody refreshes a session for longer than hours, however often: its account must get another
// service-auth token. Where no relay is followed, that is how long an account lives that was taken
// down.
func TestSessionLastsHours(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s, id := f.node(), f.account()
	const from, most, between = "198.51.100.1", 6 * time.Hour, 50 * time.Minute
	g, err := s.Create(t.Context(), id.DID, from, device, id.PublicKey(t))
	f.check(err)
	refreshes := 0
	for refused := new(sessions.RefreshError); ; refreshes++ {
		f.grow(between)
		session, err := s.Verify(t.Context(), g.Bearer)
		f.check(err)
		next, err := s.Refresh(t.Context(), session, from, g.Refresh)
		if errors.As(err, &refused) {
			break
		}
		f.check(err)
		if g = next; refreshes > int(most/between) {
			t.Fatalf("the session is refreshed after %s", time.Duration(refreshes)*between)
		}
	}
	left := time.Duration(f.count(`SELECT extract(epoch FROM expires_at - now())::int FROM sessions`)) * time.Second
	if life := time.Duration(refreshes+1)*between + left; (life - most).Abs() > 5*time.Minute {
		t.Errorf("the last bearer ends after %s, want %s", life, most)
	}
	again, err := s.Create(t.Context(), id.DID, from, device, id.PublicKey(t)) // which clients do then
	f.check(err)
	f.accepts(s, again.Bearer)
}

// A node that cannot remember all ended sessions asks the database. S6: once they are fewer, it
// remembers them again.
func TestTooManyEndedSessions(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lookups := &counted{DB: f.db}
	s := f.node(func(c *sessions.Config) { c.MaxEnded, c.Lookups = 2, lookups })
	var bearers []string
	for range 4 {
		bearers = append(bearers, f.buy(s, f.account()))
	}
	for _, bearer := range bearers[:3] {
		session, err := s.Verify(t.Context(), bearer)
		f.check(err)
		f.check(sessions.EndSession(t.Context(), f.db, session))
	}
	f.check(s.RunOnce(t.Context()))
	for _, bearer := range bearers[:3] {
		f.refuses(s, bearer, "ended")
	}
	f.accepts(s, bearers[3])

	remembers := func() bool {
		f.check(s.Rotate(t.Context()))
		f.check(s.RunOnce(t.Context()))
		before := lookups.asked
		f.accepts(s, bearers[3])
		return lookups.asked == before
	}
	if remembers() {
		t.Error("the node remembers more than it may")
	}
	f.exec(`
		UPDATE sessions SET expires_at = now() - interval '1 hour'
		WHERE id IN (SELECT id FROM sessions WHERE ended_version IS NOT NULL LIMIT 2)`)
	if !remembers() {
		t.Error("the node asks about each request, although one session has ended")
	}
	refused := 0
	for _, bearer := range bearers[:3] {
		if _, err := s.Verify(t.Context(), bearer); err != nil {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("it refuses %d of those whose ends it can know, want 1", refused)
	}
}

// A session that is the first to use its account's new key outlives the news of that key. One that
// was bought with the key before ends, and so does one whose key is forgotten later.
func TestReplacedKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.node()
	before := f.account()
	old := f.buy(s, before)
	after := &authtest.Identity{DID: before.DID, Key: authtest.K256(t)}
	f.directory.Publish(after.DID, after.PublicKey(t))
	new := f.buy(s, after)
	f.exec(`INSERT INTO identity_keys (did, key, version, fetched_at, forgotten_at) VALUES ($1, $2, 1, now(), now())`,
		after.DID, after.PublicKey(t).DIDKey())
	f.check(s.RunOnce(t.Context()))
	f.refuses(s, old, "ended")
	f.accepts(s, new)
	f.exec(`UPDATE identity_keys SET key = NULL, version = 2, forgotten_at = clock_timestamp()`)
	f.check(s.RunOnce(t.Context()))
	f.refuses(s, new, "ended")
}

// The rows of expired sessions go. Those that a node must know stay.
func TestSweep(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := f.node()
	f.buy(s, f.account())
	f.grow(time.Hour + 9*time.Minute)
	pgtest.Sweep(t, sessions.Sweep(f.db))
	if n := f.count(`SELECT count(*) FROM sessions`); n != 1 {
		t.Errorf("%d rows after 69 minutes", n)
	}
	f.grow(2 * time.Minute)
	pgtest.Sweep(t, sessions.Sweep(f.db))
	if n := f.count(`SELECT count(*) FROM sessions`); n != 0 {
		t.Errorf("%d rows after 71 minutes", n)
	}
}

// BenchmarkVerify is what a session costs a request, with 1,000 ended ones.
func BenchmarkVerify(b *testing.B) {
	f := newFixture(b)
	s := f.node()
	bearer := f.buy(s, f.account())
	f.exec(`
		INSERT INTO sessions (id, did, device_id, account_key, key_version, signed_with, issued_at, expires_at, ends_at,
			ended_version)
		SELECT gen_random_uuid(), 'did:plc:' || n, 'x', '', 0, 0, now(), now() + interval '1 hour', now() + interval '1 hour',
			100 FROM generate_series(1, 1000) n`)
	f.exec(`UPDATE session_clock SET version = 100`)
	f.check(s.RunOnce(b.Context()))
	f.accepts(s, bearer)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Verify(context.Background(), bearer); err != nil {
			b.Fatal(err)
		}
	}
}
