package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/internal/standby"
	"mlsd/messages"
)

// reading is a server for benchmarks of reads, and several callers, because the memory for one
// caller's answers is bounded.
type reading struct {
	b       *testing.B
	db      *pgxpool.Pool
	server  *api.Server
	callers [8]*authtest.Identity
}

func newReading(b *testing.B) *reading {
	b.Helper()
	return newReadingFrom(b, pgtest.Database(b, pgtest.MaxConns(16)), nil)
}

// newReadingFrom is newReading on a database, with what chooses the server of a read.
func newReadingFrom(b *testing.B, db *pgxpool.Pool, reads *standby.Reads) *reading {
	b.Helper()
	r := &reading{b: b, db: db}
	for i := range r.callers {
		r.callers[i] = authtest.NewIdentity(b)
	}
	auth, err := serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(service), Directory: authtest.NewDirectory(b, r.callers[:]...),
		Replays: serviceauth.NewUsedTokens(r.db),
	})
	if err != nil {
		b.Fatal(err)
	}
	log, metrics := slog.New(slog.DiscardHandler), api.NewMetrics(prometheus.NewRegistry())
	r.server, err = api.New(complete(api.Config{
		Tickets: events.NewTickets(r.db),
		Events: events.NewHub(events.HubConfig{DB: r.db, Presence: events.NewPresence(r.db, log), Log: log,
			Metrics: api.NewStreamMetrics(prometheus.NewRegistry())}),
		DB: r.db, Reads: reads, Auth: auth, Metrics: metrics, Log: log,
		Rates:      api.Rates{DID: api.Rate{PerSecond: 1e6, Burst: 1e6}, IP: api.Rate{PerSecond: 1e6, Burst: 1e6}},
		ServiceDID: service, PublicURL: "https://mls.example.com", Version: "test",
		Writes: idem.New(r.db, metrics, log, nil), Messages: messages.NewLog(r.db, 0, metrics, log, nil),
	}))
	if err != nil {
		b.Fatal(err)
	}
	return r
}

func (r *reading) exec(sql string, args ...any) {
	r.b.Helper()
	if _, err := r.db.Exec(context.Background(), sql, args...); err != nil {
		r.b.Fatal(err)
	}
}

// convo makes a convo with members, the callers among them, and with entries application messages
// of size bytes.
func (r *reading) convo(members, entries, size int) uuid.UUID {
	r.b.Helper()
	id := uuid.Must(uuid.NewV7())
	dids := make([]string, members)
	for i := range dids {
		if dids[i] = fmt.Sprintf("did:plc:%024d", i); i < len(r.callers) {
			dids[i] = r.callers[i].DID.String()
		}
	}
	r.exec(`INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, last_seq, created_at, last_message_at)
			VALUES
		($1, $2, $3, 1, 1, $4, now(), now())`, id, id[:], dids[0], entries)
	r.exec(`INSERT INTO members (convo_id, did, role, joined_at, joined_seq)
		SELECT $1, did, CASE n WHEN 1 THEN 'creator' ELSE 'member' END, now(), 0 FROM unnest($2::text[]) WITH ORDINALITY AS m
			(did, n)`, id, dids)
	r.exec(`INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
		SELECT $1, n, 1, 'did:plc:' || substr(md5((n % 7)::text), 1, 24), 1, decode(repeat('5a', $2::integer), 'hex'),
			n::text,
			decode(repeat('5a', 32), 'hex'), date_trunc('milliseconds', now())
		FROM generate_series(1, $3::integer) AS n`, id, size, entries)
	return id
}

// request is a query of a caller. params are pairs of name and value.
func (r *reading) request(caller int, nsid string, params ...string) *http.Request {
	r.b.Helper()
	q := httptest.NewRequest(http.MethodGet, "/xrpc/"+nsid+"?"+query(params...).Encode(), nil)
	until := authtest.Claim("exp", time.Now().Add(50*time.Minute).Unix())
	q.Header.Set("Authorization", r.callers[caller].Authorization(r.b, service, nsid, time.Now(), until))
	return q
}

// unread is a response that is not read.
type unread struct {
	header http.Header
	status int
	size   int
}

func (u *unread) Header() http.Header         { return u.header }
func (u *unread) WriteHeader(status int)      { u.status = status }
func (u *unread) Write(p []byte) (int, error) { u.size += len(p); return len(p), nil }

func (r *reading) answer(q *http.Request) (size int, ok bool) {
	w := &unread{header: http.Header{}}
	r.server.ServeHTTP(w, q)
	return w.size, w.status == http.StatusOK
}

// measure asks one request at a time, and then eight callers at once.
func (r *reading) measure(name, nsid string, params ...string) {
	r.b.Run(name, func(b *testing.B) {
		q := r.request(0, nsid, params...)
		var size int
		for range 20 { // until the driver keeps every plan
			var ok bool
			if size, ok = r.answer(q); !ok {
				b.Fatal("refused")
			}
		}
		b.Run("alone", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, ok := r.answer(q); !ok {
					b.Fatal("refused")
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pages/s")
		})
		b.Run("together", func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(len(r.callers) / runtime.GOMAXPROCS(0))
			var callers atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				q := r.request(int(callers.Add(1)-1)%len(r.callers), nsid, params...)
				for pb.Next() {
					if _, ok := r.answer(q); !ok {
						b.Error("refused")
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pages/s")
		})
	})
}

// BenchmarkGetMessages reads pages of a log of 2,000 messages of 1 KiB: its first, one by a cursor,
// and its last, which is not full. It also reads a page of seven messages of 1 MiB.
func BenchmarkGetMessages(b *testing.B) {
	r := newReading(b)
	id := r.convo(10, 2000, 1060).String()
	page := httptest.NewRecorder()
	r.server.ServeHTTP(page, r.request(0, mlsapi.NSIDGetMessages, "convoId", id, "limit", "1", "sinceSeq", "1000"))
	var at mlsapi.GetMessagesOutput
	if err := json.Unmarshal(page.Body.Bytes(), &at); err != nil {
		b.Fatal(err, page.Body)
	}
	r.measure("first", mlsapi.NSIDGetMessages, "convoId", id)
	r.measure("cursor", mlsapi.NSIDGetMessages, "convoId", id, "sinceMessage", *at.Cursor)
	r.measure("last", mlsapi.NSIDGetMessages, "convoId", id, "sinceSeq", "1955")
	r.measure("nothing", mlsapi.NSIDGetMessages, "convoId", id, "sinceSeq", "2000")
	r.measure("large", mlsapi.NSIDGetMessages, "convoId", r.convo(8, 7, 1<<20).String())
}

// BenchmarkGetConvos lists 50 convos of 10 members with nothing and with everything unread, and as
// many of 100 convos of 1,000 members as fit into one answer.
func BenchmarkGetConvos(b *testing.B) {
	for _, c := range []struct{ convos, members, entries int }{{50, 10, 0}, {50, 10, 1000}, {100, 1000, 0}} {
		r := newReading(b)
		for range c.convos {
			r.convo(c.members, c.entries, 200)
		}
		name := fmt.Sprintf("convos=%d,members=%d,unread=%d", c.convos, c.members, c.entries)
		r.measure(name, mlsapi.NSIDGetConvos, "limit", fmt.Sprint(c.convos))
	}
}

// BenchmarkGetConvo reads one convo.
func BenchmarkGetConvo(b *testing.B) {
	r := newReading(b)
	for _, members := range []int{10, 1000} {
		r.measure(fmt.Sprintf("members=%d", members), mlsapi.NSIDGetConvo, "convoId", r.convo(members, 100, 200).String())
	}
}
