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

// fakeWorker sends one draft, with made-up tokens, to a server of the test's.
func fakeWorker(addr string, requests int) *worker {
	sends := &tokens{signed: make([]string, requests)}
	d := &draft{convo: &convo{id: "c"}, before: []byte(`{"idempotencyKey":"`), after: []byte(`"}`)}
	return &worker{
		b: &bench{c: &Config{}}, addr: addr, wire: newWire(addr), twin: newWire(addr), rng: rand.New(rand.NewPCG(1, 2)), keeps: true,
		lots: []lot{{draft: d, sends: sends}},
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

// While a server does not answer, requests become due. They count from then on: to leave their waiting out would be to measure only
// how long the server takes when it feels like it.
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
	go func() { // passes on what is due, and ends the stall when enough of it waits
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
	w.open(t.Context(), win, &pulse{latency: report.NewLatency()}, due)
	op := w.counted[deedSend]
	// The pacer's first is due when it begins, which is later than the window does.
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
	if len(w.tells.receipts) != all || len(w.tells.violated) > 0 {
		t.Errorf("%d receipts, %q", len(w.tells.receipts), w.tells.violated)
	}
}

// Whatever the readers do, what is due is evenly spaced, and all of it comes that was due before the window closed, even if the pacer
// gets to it only then.
func TestPacerIsEvenAndComplete(t *testing.T) {
	t.Parallel()
	const every, all = 50_000, 2000
	win, p := &window{began: time.Now()}, newPacer(float64(time.Second/every))
	go p.run(win)
	first := <-p.due
	win.closes.Store(first + all*every) // that is the future, or already the past
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

// A request whose answer is dropped, or which is refused for now, is sent again with its bytes under its key and with a fresh token.
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
	for i := range w.lots[0].sends.signed {
		w.lots[0].sends.signed[i] = strconv.Itoa(i)
	}
	if _, ok := w.do(t.Context()); !ok {
		t.Fatalf("not sent: %q", w.tells.violated)
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
	if w.tells.retried != 2 || w.last.seq != 7 {
		t.Errorf("%d retries, seq %d", w.tells.retried, w.last.seq)
	}
}

// A refusal is no reason to ask again, and is told.
func TestRefusalsAreTold(t *testing.T) {
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
	if _, ok := w.do(t.Context()); ok || len(w.tells.violated) != 1 || w.counted[deedSend].Failed["NotMember"] != 1 || len(w.tells.unknown) != 0 {
		t.Errorf("done: %t; %+v", ok, w.tells)
	}
}
