package bench

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/clientsim/bench/report"
)

// fakeWorker sends one draft, with fake tokens, to a server of the test.
func fakeWorker(addr string, requests int) *worker {
	sends := &tokens{signed: make([]string, requests)}
	d := &draft{convo: &convo{id: "c"}, before: []byte(`{"idempotencyKey":"`), after: []byte(`"}`)}
	return &worker{
		b: &bench{c: &Config{}}, addr: addr, wire: newWire(addr), second: newWire(addr), rng: rand.New(rand.NewPCG(1, 2)), keeps: true,
		jobs: []job{{draft: d, sendTokens: sends}},
	}
}

// acknowledge answers sendMessage, each with the next seq.
func acknowledge(conn net.Conn, before func(n int)) {
	in := bufio.NewReader(conn)
	for n := 0; ; n++ {
		request, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		before(n)
		body := `{"messageId":"` + uuid.NewString() + `","receivedAt":"2026-01-01T00:00:00.000Z","seq":` + strconv.Itoa(n+1) + `}`
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
	}
}

// Requests become due while a server does not answer. Their latency counts from then on. Otherwise
// the measurement would leave out the waiting.
func TestLatencyCountsFromWhenARequestWasDue(t *testing.T) {
	t.Parallel()
	const rate, stalled, all = 1000, 60, 100
	release := make(chan struct{})
	addr := talk(t, func(conn net.Conn) {
		acknowledge(conn, func(n int) {
			if n == 0 {
				<-release
			}
		})
	})
	w := fakeWorker(addr, 2*all)
	defer w.close()
	win, p := &window{began: time.Now()}, newPacer(rate)
	win.opens.Store(1)
	go p.run(win)
	due := make(chan int64, mostDue)
	go func() { // passes on what is due, and ends the stall when enough requests wait
		defer close(due)
		n := 0
		for at := range p.due {
			if n++; n <= all {
				due <- at
			}
			if n == stalled {
				close(release)
			}
			if n == all {
				win.closes.Store(win.now() + int64(time.Second))
			}
		}
	}()
	w.open(t.Context(), win, &currentSecond{latency: report.NewLatency()}, due)
	op := w.counted[opSend]
	// The first request is due when the pacer begins, which is after the window opens.
	if op == nil || op.Done < all-1 {
		t.Fatalf("%+v, want %d requests", op, all)
	}
	var waited int64
	const half = stalled / 2 * int64(time.Second) / rate / int64(time.Microsecond)
	for _, bar := range op.Latency.Distribution() {
		if bar.From >= half*9/10 {
			waited += bar.Count
		}
	}
	if waited < stalled/2 {
		t.Errorf("%d requests took %d µs or more, want the %d that were due in the first half of the stall", waited, half, stalled/2)
	}
	if len(w.outcome.receipts) != all || len(w.outcome.violated) > 0 {
		t.Errorf("%d receipts, %q", len(w.outcome.receipts), w.outcome.violated)
	}
}

// Due times are evenly spaced, whatever the readers do. Everything that was due before the window
// closed is handed out, even if the pacer gets to it later.
func TestPacerIsEvenAndComplete(t *testing.T) {
	t.Parallel()
	const every, all = 50_000, 2000
	win, p := &window{began: time.Now()}, newPacer(float64(time.Second/every))
	go p.run(win)
	first := <-p.due
	win.closes.Store(first + all*every) // in the future or already in the past
	n := int64(1)
	for at := range p.due {
		if at != first+n*every {
			t.Fatalf("request %d is due %d ns behind the first", n, at-first)
		}
		n++
	}
	if n != all {
		t.Errorf("%d requests were due, want %d", n, all)
	}
}

// A request whose answer is dropped or which is refused for now is sent again: the same bytes and
// key, with a new token.
func TestRetriesAreTheSameRequest(t *testing.T) {
	t.Parallel()
	type seen struct{ token, body string }
	got := make(chan seen, 3)
	addr := talk(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			request, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(request.Body)
			got <- seen{request.Header.Get("Authorization"), string(body)}
			switch len(got) {
			case 1:
				return // without an answer
			case 2:
				_, _ = io.WriteString(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 30\r\n\r\n"+`{"error":"ServiceUnavailable"}`)
			case 3:
				answer := `{"messageId":"` + uuid.NewString() + `","receivedAt":"2026-01-01T00:00:00.000Z","seq":7}`
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(len(answer))+"\r\n\r\n"+answer)
			}
		}
	})
	w := fakeWorker(addr, 3)
	defer w.close()
	for i := range w.jobs[0].sendTokens.signed {
		w.jobs[0].sendTokens.signed[i] = strconv.Itoa(i)
	}
	if _, ok := w.do(t.Context()); !ok {
		t.Fatalf("not sent: %q", w.outcome.violated)
	}
	first := <-got
	key := strings.TrimSuffix(strings.TrimPrefix(first.body, `{"idempotencyKey":"`), `"}`)
	if id, err := uuid.Parse(key); err != nil || id.Version() != 7 || id.Variant() != uuid.RFC4122 {
		t.Errorf("the key %q is no UUIDv7: %v", key, err)
	}
	for i, again := range []seen{<-got, <-got} {
		if again.body != first.body || again.token != "Bearer "+strconv.Itoa(i+1) {
			t.Errorf("attempt %d: %q, the first was %q", i+2, again, first)
		}
	}
	if w.outcome.retried != 2 || w.last.seq != 7 {
		t.Errorf("%d retries, seq %d", w.outcome.retried, w.last.seq)
	}
}

// A final refusal is not retried, and is reported.
func TestRefusalsAreReported(t *testing.T) {
	t.Parallel()
	addr := talk(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			request, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			body := `{"error":"NotMember","message":"gone"}`
			_, _ = io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n"+body)
		}
	})
	w := fakeWorker(addr, 1)
	defer w.close()
	if _, ok := w.do(t.Context()); ok || len(w.outcome.violated) != 1 || w.counted[opSend].Failed["NotMember"] != 1 || len(w.outcome.unknown) != 0 {
		t.Errorf("done: %t; %+v", ok, w.outcome)
	}
}
