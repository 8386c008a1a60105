package events_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/messages"
	"mlsd/migrations"
	"mlsd/outbox"
)

type listener struct {
	s    *events.Subscription
	did  syntax.DID
	from int64
	only []uuid.UUID
	got  []string
}

// pump reads up to n events. It stops when there are no more, and after the wait.
func (l *listener) pump(t *testing.T, n int, wait time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	for range n {
		e, err := l.s.Ready(ctx)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if e == nil {
			return
		}
		l.got = append(l.got, fmt.Sprintf("%d %s", e.StreamSeq, brief(e)))
	}
}

// TestModel compares subscriptions of all kinds with a model computed from the table, on a node
// that leads and on one that lags.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 77))
			w := newWorld(t)
			buffer := func(c *events.HubConfig) { c.Buffer = 1000 + rng.IntN(6000) }
			a, b := w.node(t, buffer), w.node(t, buffer)
			people := []syntax.DID{alice, bob, carol}
			var convos []uuid.UUID
			roster := map[string]bool{}
			old := map[string]bool{} // members who joined without an event
			for i := range 3 {
				convos = append(convos, w.convo(t, mallory))
				for _, p := range people {
					if i == 0 || rng.IntN(3) == 0 {
						if _, err := w.db.Exec(t.Context(),
							`INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, $2, 'member', now(), 0)`,
							convos[i], p); err != nil {
							t.Fatal(err)
						}
						roster[convos[i].String()+p.String()], old[convos[i].String()+p.String()] = true, true
					}
				}
			}
			a.publish(t)
			if _, err := b.hub.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
			heads := map[*node]int64{}
			head := func() (h int64) {
				if err := w.db.QueryRow(t.Context(), `SELECT head FROM stream`).Scan(&h); err != nil {
					t.Fatal(err)
				}
				return h
			}
			heads[a], heads[b] = head(), head()
			var all []*listener
			reset := map[uuid.UUID]bool{}
			day := 0
			for range 250 {
				convo, p := convos[rng.IntN(3)], people[rng.IntN(3)]
				switch rng.IntN(12) {
				case 0, 1:
					change, key := outbox.Joined, convo.String()+p.String()
					if roster[key] {
						change = outbox.Left
					}
					roster[key] = !roster[key]
					w.must(t, convo, p, change)
				case 2:
					if _, err := a.seq.Round(t.Context()); err != nil {
						t.Fatal(err)
					}
				case 3, 4:
					n := []*node{a, b}[rng.IntN(2)]
					if _, err := n.hub.Round(t.Context()); err != nil {
						t.Fatal(err)
					}
					heads[n] = head()
				case 5:
					if len(all) >= 30 {
						break
					}
					n := []*node{a, b}[rng.IntN(2)]
					l := &listener{did: p}
					r := events.Request{DID: p}
					if rng.IntN(3) > 0 {
						c := rng.Int64N(head() + 2)
						r.Cursor, l.from = new(events.From(c)), c
					}
					if rng.IntN(3) == 0 {
						l.only = []uuid.UUID{convos[rng.IntN(3)]}
						r.Convos = l.only
					}
					l.s = n.subscribeTo(t, r)
					if r.Cursor == nil { // at the end that the hub has read, or of which it was told
						at := l.s.Place()
						if at != heads[n] && at != head() {
							t.Errorf("a subscription begins after %d, the hub is at %d, the stream at %d", at, heads[n], head())
						}
						l.from = at + 1
					}
					all = append(all, l)
				case 6, 7:
					if len(all) > 0 {
						all[rng.IntN(len(all))].pump(t, 1+rng.IntN(8), 20*time.Millisecond) // or the reader waits for the index
					}
				case 8:
					w.welcome(t, convo, p)
					w.arrival(t, convo, p)
					if !reset[convo] {
						reset[convo] = true
						w.reset(t, convo, mallory)
					}
					if rng.IntN(2) == 0 {
						w.signal(t, p)
					}
					if rng.IntN(6) == 0 {
						[]*node{a, b}[rng.IntN(2)].hub.Forget(t, 1+rng.IntN(20))
					}
					if rng.IntN(8) == 0 && day < 5 {
						day++
						a.seq.Ahead(time.Duration(day) * 24 * time.Hour)
					}
				case 9:
					w.sayTogether(t, mallory, convos[rng.IntN(3)], convos[rng.IntN(3)], convo, convo)
				default:
					w.say(t, convo, mallory, 1+rng.IntN(3))
				}
			}
			a.publish(t)
			if _, err := b.hub.Round(t.Context()); err != nil {
				t.Fatal(err)
			}
			// The model.
			type row struct {
				seq    int64
				kind   outbox.Kind
				convo  uuid.UUID
				did    syntax.DID
				change string
				n      int64
			}
			rows, err := w.db.Query(t.Context(),
				`SELECT stream_seq, kind, coalesce(convo_id, '00000000-0000-0000-0000-000000000000'), coalesce(did, ''),
						coalesce(detail->>'change', ''), coalesce(seq, 0) FROM single_events ORDER BY stream_seq`)
			if err != nil {
				t.Fatal(err)
			}
			var table []row
			for rows.Next() {
				var r row
				var kind int16
				var did string
				if err := rows.Scan(&r.seq, &kind, &r.convo, &did, &r.change, &r.n); err != nil {
					t.Fatal(err)
				}
				r.kind, r.did = outbox.Kind(kind), syntax.DID(did)
				table = append(table, r)
			}
			for i, l := range all {
				in := map[uuid.UUID]bool{}
				for _, c := range convos {
					in[c] = old[c.String()+l.did.String()]
				}
				var want []string
				for _, r := range table {
					mine := r.kind == outbox.Membership && r.did == l.did
					if mine && r.change == outbox.Joined {
						in[r.convo] = true
					}
					gets := in[r.convo]
					if r.kind == outbox.Welcome || r.kind == outbox.KeyPackages || r.kind == outbox.Arrival {
						gets = r.did == l.did
					}
					if mine && r.change != outbox.Joined {
						in[r.convo] = false
					}
					if !gets || r.seq < l.from || l.only != nil && !slices.Contains(l.only, r.convo) {
						continue
					}
					text := fmt.Sprint(r.n)
					switch {
					case r.kind == outbox.Membership:
						text = fmt.Sprintf("%s %s", strings.TrimPrefix(r.did.String(), "did:plc:"), r.change)
					case r.kind >= outbox.Welcome:
						text = fmt.Sprintf("kind %d of %s", r.kind, strings.TrimPrefix(r.did.String(), "did:plc:"))
					}
					want = append(want, fmt.Sprintf("%d %s", r.seq, text))
				}
				l.pump(t, len(want)-len(l.got), patience)
				if !slices.Equal(l.got, want) {
					t.Errorf("listener %d (%s from %d, only %v)\n got %q\nwant %q", i, l.did, l.from, l.only, l.got, want)
				}
			}
			w.index(t, 1) // no reader waits any more
			for _, n := range []*node{a, b} {
				if _, err := n.hub.Round(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for _, l := range all {
				nothing(t, l.s)
			}
		})
	}
}

// TestOrdinaryOwner: the stream needs no superuser. It works with a role that only owns the
// database.
func TestOrdinaryOwner(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	admin, err := pgpool.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	name := "ordinary_" + strings.ReplaceAll(uuid.NewString(), "-", "")[:8]
	var db string
	if err := admin.QueryRow(t.Context(), `SELECT current_database()`).Scan(&db); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`CREATE ROLE ` + name + ` LOGIN NOSUPERUSER`, `ALTER DATABASE "` + db + `" OWNER TO ` + name,
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		_, err := admin.Exec(context.Background(),
			`ALTER DATABASE "`+db+`" OWNER TO current_user; REASSIGN OWNED BY `+name+` TO current_user; DROP OWNED BY `+name+
				`; DROP ROLE `+name)
		t.Log("cleanup", err)
	}()
	cfg := admin.Config().ConnConfig
	own := fmt.Sprintf("postgres:///%s?host=%s&port=%d&user=%s&sslmode=disable", db, cfg.Host, cfg.Port, name)
	pgtest.LetConnect(t, admin, name, own)
	if err := migrations.Up(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	open := func() *pgxpool.Pool {
		p, err := pgpool.Open(t.Context(), own)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := open()
	w := &world{db: p}
	w.log = messages.NewLog(p, 0, uncounted{}, slog.New(slog.DiscardHandler), nil)
	frozen, other := w.node(t), w.node(t)
	frozen.publish(t)
	convo := w.convo(t, alice)
	w.say(t, convo, alice, 1)
	w.takeOver(t, other)
	other.seq.Ahead(9 * 24 * time.Hour)
	other.publish(t)
	frozen.seq.Resign()
	other.seq.Resign()
	p.Close()
}
