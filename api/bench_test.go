package api_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"mlsd/api"
	"mlsd/api/mlsapi"
	"mlsd/features/push"
	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/internal/serviceauth"
	"mlsd/internal/serviceauth/authtest"
	"mlsd/messages"
)

// BenchmarkSendMessage sends messages of 1 KiB over TCP, each with a fresh token, 64 in flight. The
// clients allocate almost nothing, so the allocations are those of the server: HTTP,
// authentication, decoding, the log and PostgreSQL's driver.
func BenchmarkSendMessage(b *testing.B) {
	b.Run("written", func(b *testing.B) { benchmarkSends(b, func(log *messages.Log) api.Sender { return log }) })
	b.Run("ceiling", func(b *testing.B) { benchmarkSends(b, func(*messages.Log) api.Sender { return noLog{} }) })
}

// noLog uses up a message's token, and writes nothing.
type noLog struct{}

func (noLog) Send(ctx context.Context, d messages.Draft) (messages.Receipt, error) {
	return messages.Receipt{ID: uuid.Must(uuid.NewV7()), Seq: 1, Epoch: d.Epoch, At: time.Now()}, d.Token.Use(ctx)
}

func benchmarkSends(b *testing.B, sender func(*messages.Log) api.Sender) {
	const inFlight, convos = 64, 100
	db := pgtest.Database(b, pgtest.MaxConns(16))
	directory := authtest.NewDirectory(b)
	quiet := slog.New(slog.DiscardHandler)
	auth, err := serviceauth.New(serviceauth.Config{
		Audiences: serviceauth.Audiences(service), Directory: directory, Replays: serviceauth.NewUsedTokens(db),
	})
	if err != nil {
		b.Fatal(err)
	}
	metrics := api.NewMetrics(prometheus.NewRegistry())
	log := messages.NewLog(db, 0, metrics, quiet, nil)
	plenty := api.Rate{PerSecond: 1e9, Burst: 1e9}
	handler, err := api.New(complete(api.Config{
		DB: db, Auth: auth, Metrics: metrics, Log: quiet, Push: push.Policy{Webhooks: true},
		Rates:      api.Rates{DID: plenty, IP: plenty},
		ServiceDID: service, PublicURL: "https://mls.example.com", Version: "test", Writes: idem.New(db, metrics, quiet, nil),
		Messages: sender(log),
	}))
	if err != nil {
		b.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: handler}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	b.Cleanup(func() {
		if err := server.Close(); err != nil {
			b.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			b.Error(err)
		}
	})

	senders, ids := make([]*authtest.Identity, 16), make([]uuid.UUID, convos)
	for i := range senders {
		senders[i] = authtest.NewIdentity(b)
		directory.Publish(senders[i].DID, senders[i].PublicKey(b))
	}
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
		sender := senders[i%len(senders)].DID
		_, err := db.Exec(b.Context(), `
			WITH convo AS (
				INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2, $3, 1, 1, now())
			)
			INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, $3, 'creator', now(), 0)`, ids[i],
			ids[i][:], sender)
		if err != nil {
			b.Fatal(err)
		}
	}
	requests := make([][]byte, b.N)
	var making sync.WaitGroup
	var made atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		making.Go(func() {
			for i := made.Add(1) - 1; i < int64(b.N); i = made.Add(1) - 1 {
				sender, convo := senders[i%convos%int64(len(senders))], ids[i%convos]
				body := encode(&mlsapi.SendMessageInput{
					ConvoID: convo.String(), SenderDID: sender.DID, Epoch: 1, IdempotencyKey: newKey(),
					Ciphertext: mlstest.Message(convo[:], 1, fmt.Sprintf("%01024d", i)),
				})
				requests[i] = fmt.Appendf(nil, "POST /xrpc/%s HTTP/1.1\r\nHost: mls.example.com\r\nAuthorization: %s\r\n"+
					"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", mlsapi.NSIDSendMessage,
					sender.Authorization(b, service, mlsapi.NSIDSendMessage, time.Now()), len(body), body)
			}
		})
	}
	making.Wait()
	var next atomic.Int64
	var sending sync.WaitGroup
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	for range inFlight {
		sending.Go(func() {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				b.Error(err)
				return
			}
			defer func() {
				if err := conn.Close(); err != nil {
					b.Error(err)
				}
			}()
			answers := bufio.NewReader(conn)
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				if _, err := conn.Write(requests[i]); err != nil {
					b.Error(err)
					return
				}
				if err := accepted(answers); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	sending.Wait()
	b.StopTimer()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(b.N), "allocs/request")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N), "B/request")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

// accepted reads an answer, without keeping anything of it, and fails unless it is 200.
func accepted(from *bufio.Reader) error {
	line, err := from.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
		rest, _ := from.Peek(from.Buffered()) // the part that has arrived, for the error
		return fmt.Errorf("%s%s", line, rest)
	}
	length := -1
	for {
		line, err := from.ReadSlice('\n')
		if err != nil {
			return err
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
		if len(line) == 2 {
			break
		}
	}
	if length < 0 {
		return io.ErrUnexpectedEOF
	}
	_, err = from.Discard(length)
	return err
}
