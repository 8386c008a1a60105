package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/features/relay"
	"mlsd/people/accounts"
)

// An account is deactivated, comes back, is deleted, and comes back before its data is erased.
func TestLifeOfAnAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.relay.connections(1)
	for i, step := range []struct {
		says string
		want accounts.Status
		due  bool
	}{
		{"deactivated", accounts.Deactivated, false},
		{"", accounts.Active, false},
		{"suspended", accounts.Suspended, false},
		{"takendown", accounts.TakenDown, false},
		{"deleted", accounts.Deleted, true},
		{"", accounts.Active, false},
		{"newfangled", accounts.Deactivated, false},
	} {
		began := time.Now()
		w.relay.account(int64(i+1), alice, step.says)
		n.stores()
		t.Logf("%q: stored %s after it was said", step.says, time.Since(began))
		if got := w.status(alice); got != step.want {
			t.Fatalf("%q: the account is %s", step.says, got)
		}
		due, err := w.store.Due(t.Context(), w.db, time.Now().Add(2*time.Hour), 10)
		w.check(err)
		if (len(due) == 1) != step.due {
			t.Fatalf("%q: to be erased: %v", step.says, due)
		}
	}
	if got := n.metric("mlsd_account_statuses_total", "deactivated"); got != 2 {
		t.Errorf("%v deactivations were counted", got)
	}
}

// What only concerns a relay's copy of the account does not concern the account.
func TestStatesOfCopiesHaveNoEffect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.relay.connections(1)
	w.relay.account(1, alice, "desynchronized")
	w.relay.account(2, alice, "throttled")
	w.relay.account(3, carol, "deleted") // is not known here
	w.relay.account(4, bob, "suspended")
	n.stores()
	if w.status(alice) != accounts.Active || w.status(bob) != accounts.Suspended {
		t.Errorf("alice is %s, bob is %s", w.status(alice), w.status(bob))
	}
	var rows int
	w.check(w.db.QueryRow(t.Context(), `SELECT count(*) FROM accounts`).Scan(&rows))
	if rows != 1 {
		t.Errorf("%d accounts have a row", rows)
	}
}

// The keys of an account whose identity changed are forgotten, if the account is known here. If that
// fails it is tried again.
func TestIdentities(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var failed atomic.Bool
	n := w.node(func(n *node) {
		n.forgets = func(syntax.DID) error {
			if failed.CompareAndSwap(false, true) {
				return errors.New("the database cannot be reached")
			}
			return nil
		}
	})
	w.relay.connections(1)
	w.relay.commit(1, 100)
	w.cursor(1)
	w.relay.identity(2, carol)
	w.relay.identity(3, alice)
	if did := n.forgetsNext(); did != alice || !failed.Load() {
		t.Errorf("forgot %s", did)
	}
	began := time.Now()
	w.relay.identity(4, bob)
	if did := n.forgetsNext(); did != bob {
		t.Errorf("forgot %s", did)
	}
	t.Logf("forgotten %s after it was said", time.Since(began))
	w.relay.commit(5, 100, "app.bsky.feed.post/3k", "blue.catbird.mls.profiles/self")
	w.relay.commit(6, 100, "app.bsky.feed.post/3k", "blue.catbird.mls.profile/self")
	if did := n.forgetsNext(); did != alice {
		t.Errorf("forgot %s, and not who has chosen another delivery service", did)
	}
}

// After a lost connection, and after a crash of the node, no event is left out.
func TestReconnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.node()
	w.relay.connections(1)
	w.relay.commit(1, 100)
	w.relay.commit(5, 1<<20)
	w.relay.account(7, alice, "suspended")
	first.stores()
	w.relay.drop()
	w.relay.account(8, bob, "suspended")
	first.stores()
	if cursor := w.relay.connections(2); cursor != "7" {
		t.Errorf("the second connection begins after %q", cursor)
	}
	w.relay.commit(9, 100) // its cursor is stored alone, a second later
	w.cursor(9)
	first.stop()
	w.relay.account(10, alice, "")
	second := w.node()
	second.stores()
	if cursor := w.relay.connections(3); cursor != "9" {
		t.Errorf("the second node begins after %q", cursor)
	}
	if got := w.status(alice); got != accounts.Active {
		t.Errorf("alice is %s", got)
	}
	if got := first.metric("mlsd_relay_gaps_total", ""); got != 0 {
		t.Errorf("%v gaps", got)
	}
}

// An operator sets the cursor while a node follows. The node reads the events after it again, and
// does not store its own cursor over it.
func TestSeek(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.relay.connections(1)
	source, err := relay.ParseSource(w.relay.web.URL)
	w.check(err)
	seek := func(cursor int64) (was int64, err error) {
		t.Helper()
		err = pgx.BeginFunc(t.Context(), w.db, func(tx pgx.Tx) error {
			was, err = relay.Seek(t.Context(), tx, source, cursor)
			return err
		})
		return was, err
	}
	if _, err := seek(1); !errors.Is(err, relay.ErrNotFollowed) {
		t.Errorf("before the first cursor: %v", err)
	}
	w.relay.account(5, alice, "suspended")
	n.stores()
	w.relay.account(7, bob, "suspended")
	n.stores()
	if was, err := seek(5); err != nil || was != 7 {
		t.Errorf("the cursor was %d, %v", was, err)
	}
	if cursor := w.relay.connections(2); cursor != "5" {
		t.Errorf("the node reads on after %q", cursor)
	}
	w.cursor(7)
	if _, err := seek(0); err != nil {
		t.Error(err)
	}
	if cursor := w.relay.connections(3); cursor != "" {
		t.Errorf("the node reads on after %q", cursor)
	}
	w.relay.account(8, bob, "")
	n.stores()
	w.cursor(8)
}

// A relay that has lost events says so. They are counted, and what follows counts.
func TestGaps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.relay.refuse = func(cursor string) [][]byte {
		switch cursor {
		case "50":
			return [][]byte{encode(t, map[string]any{"op": int64(-1)},
				map[string]any{"error": "FutureCursor", "message": "Cursor in the future."}), nil}
		case "60":
			return [][]byte{encode(t, map[string]any{"op": int64(1), "t": "#info"}, map[string]any{"name": "OutdatedCursor"})}
		}
		return nil
	}
	n := w.node()
	w.relay.connections(1)
	w.relay.commit(50, 10)
	w.cursor(50)
	w.relay.drop()
	w.relay.connections(2) // is refused
	if cursor := w.relay.connections(3); cursor != "" {
		t.Errorf("after FutureCursor it begins after %q", cursor)
	}
	w.relay.account(60, alice, "deleted")
	n.stores()
	w.relay.drop()
	w.relay.connections(4)
	w.relay.account(61, alice, "")
	n.stores()
	if got := w.status(alice); got != accounts.Active {
		t.Errorf("alice is %s", got)
	}
	if got := n.metric("mlsd_relay_gaps_total", ""); got != 2 {
		t.Errorf("%v gaps were counted", got)
	}
}

// Finding S12: a relay that says the same in 3,000 frames fills no log. Each connection writes one line,
// and counts one gap.
func TestRelaySaysItOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	outdated := encode(t, map[string]any{"op": int64(1), "t": "#info"}, map[string]any{"name": "OutdatedCursor"})
	w.relay.refuse = func(string) [][]byte { return slices.Repeat([][]byte{outdated}, 3000) }
	var log bytes.Buffer
	n := w.node(func(n *node) { n.log = slog.New(slog.NewTextHandler(&log, nil)) })
	w.relay.connections(1)
	w.relay.account(10, alice, "suspended")
	n.stores()
	w.relay.drop()
	w.relay.connections(2)
	w.relay.account(11, alice, "")
	n.stores()
	if got := n.metric("mlsd_relay_gaps_total", ""); got != 2 {
		t.Errorf("%v gaps were counted on two connections", got)
	}
	n.stop()
	if lines := strings.Count(log.String(), "events of the relay are lost"); lines != 2 {
		t.Errorf("two connections wrote %d lines", lines)
	}
}

// Frames that cannot be read are passed over, however long they are, and cost no connection.
func TestGarbage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.relay.connections(1)
	header := map[string]any{"op": int64(1), "t": "#account"}
	for i, wire := range [][]byte{
		{}, {0xff}, []byte("not CBOR"), encode(t, header), encode(t, header, map[string]any{"seq": "one"}),
		encode(t, header, map[string]any{"seq": int64(2), "did": "nobody", "active": true}),
		append(encode(t, header), 0x5b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), // a string of 2^63 bytes
		encode(t, map[string]any{"op": int64(7)}, map[string]any{}),
		make([]byte, 6<<20),
	} {
		w.relay.say(int64(i+1), wire)
	}
	w.relay.account(100, alice, "suspended")
	n.stores()
	if got := w.status(alice); got != accounts.Suspended {
		t.Errorf("alice is %s", got)
	}
	got := map[string]float64{}
	for _, kind := range []string{"invalid", "oversized", "account"} {
		got[kind] = n.metric("mlsd_relay_events_total", kind)
	}
	if diff := cmp.Diff(map[string]float64{"invalid": 8, "oversized": 1, "account": 1}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if w.relay.count() != 1 {
		t.Errorf("%d connections", w.relay.count())
	}
	for i := range 1000 { // nothing else: the connection is given up
		w.relay.say(int64(200+i), []byte{0xff})
	}
	w.relay.connections(2)
}

// Of two nodes one follows. When it ends the other one goes on.
func TestOneNodeFollows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.node()
	w.relay.connections(1)
	tries := make(chan struct{}, 100000)
	config := w.db.Config()
	config.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
		tries <- struct{}{}
		return true, nil
	}
	db, err := pgxpool.NewWithConfig(t.Context(), config)
	w.check(err)
	t.Cleanup(db.Close)
	two := w.node(func(n *node) { n.db = db })
	for range 2 { // it tries a second time, so the first election has ended
		select {
		case <-tries:
		case <-time.After(patience):
			t.Fatal("the second node does not try")
		}
	}
	w.relay.account(1, alice, "suspended")
	one.stores()
	if one.metric("mlsd_relay_following", "") != 1 || two.metric("mlsd_relay_following", "") != 0 || w.relay.count() != 1 {
		t.Errorf("%d connections", w.relay.count())
	}
	one.stop()
	w.relay.account(2, alice, "")
	two.stores()
	if got := w.status(alice); got != accounts.Active || w.relay.count() != 2 {
		t.Errorf("alice is %s, %d connections", got, w.relay.count())
	}
}

// A follower whose session is ended writes nothing more, and follows again.
func TestLostSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.relay.connections(1)
	var ended int
	w.check(w.db.QueryRow(t.Context(), `
		SELECT count(pg_terminate_backend(pid)) FROM pg_locks
		WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname =
			current_database())`).Scan(&ended))
	if ended != 1 {
		t.Fatalf("%d sessions hold the lock", ended)
	}
	w.relay.account(1, alice, "suspended") // is lost with the first session, unless a cursor says where to begin
	w.relay.connections(2)
	w.relay.account(2, bob, "suspended")
	w.until(`SELECT EXISTS (SELECT FROM accounts WHERE did = $1)`, bob)
	n.stop()
}

// While the database is slow the relay waits. Its events are bounded in the node's memory, and none
// is left out.
func TestSlowDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.relay.connections(1)
	w.relay.account(1, alice, "suspended")
	n.stores()
	tx, err := w.db.Begin(t.Context())
	w.check(err)
	if _, err := tx.Exec(t.Context(), `SELECT FROM account_clock FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	const events = 3000
	for i := range events {
		status := "deactivated"
		if i%2 == 1 {
			status = ""
		}
		w.relay.account(int64(2+i), alice, status)
	}
	w.relay.account(2+events, bob, "deleted")
	w.check(tx.Commit(t.Context()))
	w.cursor(2 + events)
	if w.status(alice) != accounts.Active || w.status(bob) != accounts.Deleted {
		t.Errorf("alice is %s, bob is %s", w.status(alice), w.status(bob))
	}
}

// A Jetstream says the same in JSON. Its cursor is a time.
func TestJetstream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kind, w.relay.jetstream = relay.Jetstream, true
	n := w.node()
	w.relay.connections(1)
	say := func(at int64, text string) { w.relay.say(at, fmt.Appendf(nil, text, at)) }
	say(1, `{"did":"`+carol.String()+`","time_us":%d,"kind":"commit","commit":{"operation":"create"}}`)
	say(2, `{"time_us":%d`)
	say(3, `{"did":"`+alice.String()+`","time_us":%d,"kind":"account","account":{"active":false,"did":"`+alice.String()+
		`","seq":9,"status":"takendown","time":"2026-11-01T12:00:00Z"}}`)
	n.stores()
	say(4, `{"did":"`+bob.String()+`","time_us":%d,"kind":"identity","identity":{"did":"`+bob.String()+
		`","handle":"bob.test","seq":10,"time":"2026-11-01T12:00:01Z"}}`)
	if did := n.forgetsNext(); did != bob {
		t.Errorf("forgot %s", did)
	}
	if got := w.status(alice); got != accounts.TakenDown {
		t.Errorf("alice is %s", got)
	}
	say(5, `{"did":"`+alice.String()+`","time_us":%d,"kind":"commit","commit":{"operation":"update","collection":`+
		`"blue.catbird.mls.profile","rkey":"self"}}`)
	if did := n.forgetsNext(); did != alice {
		t.Errorf("forgot %s, and not who has chosen another delivery service", did)
	}
	w.cursor(5)
	w.relay.drop()
	if cursor := w.relay.connections(2); cursor != "5" {
		t.Errorf("the second connection begins after %q", cursor)
	}
	if got := n.metric("mlsd_relay_events_total", "invalid"); got != 1 {
		t.Errorf("%v invalid events", got)
	}
}

func TestParseSource(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://bsky.network":                       "repos wss://bsky.network/xrpc/com.atproto.sync.subscribeRepos",
		"wss://bsky.network/":                        "repos wss://bsky.network/xrpc/com.atproto.sync.subscribeRepos",
		"http://127.0.0.1:2583":                      "repos ws://127.0.0.1:2583/xrpc/com.atproto.sync.subscribeRepos",
		"wss://jetstream1.us-east.example/subscribe": "jetstream wss://jetstream1.us-east.example/subscribe",
		"ftp://bsky.network":                         "",
		"bsky.network":                               "",
		"wss://user:secret@bsky.network":             "",
		"wss://bsky.network?cursor=0":                "",
		"://":                                        "",
	} {
		source, err := relay.ParseSource(address)
		if want == "" {
			if err == nil {
				t.Errorf("%s was accepted: %s", address, source)
			}
			continue
		}
		if err != nil || source.String() != want {
			t.Errorf("%s: %q, %v; want %q", address, source, err, want)
		}
	}
}
