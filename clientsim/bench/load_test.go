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

	"github.com/google/uuid"

	"mlsd/clientsim/load"
)

// fakeWorker sends one draft, with fake tokens, to a server of the test.
func fakeWorker(addr string, requests int) *worker {
	d := &draft{
		convo: &convo{id: "c"}, sender: &sender{}, before: []byte(`{"idempotencyKey":"`), after: []byte(`"}`),
	}
	for i := range requests {
		d.sender.signed = append(d.sender.signed, strconv.Itoa(i))
	}
	return &worker{
		b:    &bench{c: &Config{}, phase: &phase{}, drafts: []*draft{d}},
		addr: addr, wire: newWire(addr), second: newWire(addr), rng: rand.New(rand.NewPCG(1, 2)),
	}
}

// A request is sent again if its answer is dropped, or if it is refused for now: the same bytes and
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
				_, _ = io.WriteString(conn,
					"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 30\r\n\r\n"+`{"error":"ServiceUnavailable"}`)
			case 3:
				answer := `{"messageId":"` + uuid.NewString() + `","receivedAt":"2026-01-01T00:00:00.000Z","seq":7}`
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: "+strconv.Itoa(len(answer))+"\r\n\r\n"+answer)
			}
		}
	})
	w := fakeWorker(addr, 3)
	defer w.close()
	count := load.NewCounter()
	w.do(t.Context(), load.Request{Count: count})
	if op := count.Operations()[opSend]; op.Done != 1 {
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
	if receipts := w.outcome.receipts; w.outcome.retried != 2 || len(receipts) != 1 || receipts[0].seq != 7 {
		t.Errorf("%d retries, receipts %v", w.outcome.retried, receipts)
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
	count := load.NewCounter()
	w.do(t.Context(), load.Request{Count: count})
	op := count.Operations()[opSend]
	if op.Done != 0 || len(w.outcome.violated) != 1 || op.Failed["NotMember"] != 1 || len(w.outcome.unknown) != 0 {
		t.Errorf("done: %d; %+v", op.Done, w.outcome)
	}
}
