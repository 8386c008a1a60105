package client

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
	"mlsd/clientsim/xrpc/xrpctest"
)

// fakeStream serves the frames from the requested cursor on, and closes the connection after every
// seven. cheat may change what it sends.
func fakeStream(t *testing.T, frames [][]byte, cursorOf func(int) int64, cheat func(connection int, frames [][]byte) [][]byte) *xrpc.Client {
	t.Helper()
	var connections atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "getSubscriptionTicket") {
			fmt.Fprint(w, `{"ticket":"tick","url":"https://example.com/xrpc/blue.catbird.mls.subscribeConvoEvents?ticket=tick","expiresAt":"2026-11-20T10:11:12.345Z"}`)
			return
		}
		if r.URL.Query().Get("ticket") != "tick" && r.Header.Get("Authorization") == "" {
			http.Error(w, `{"error":"InvalidTicket"}`, http.StatusBadRequest)
			return
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		from, _ := strconv.ParseInt(r.URL.Query().Get("cursor"), 10, 64)
		var rest [][]byte
		for i, f := range frames {
			if cursorOf(i) >= from {
				rest = append(rest, f)
			}
		}
		if cheat != nil {
			rest = cheat(int(connections.Add(1)), rest)
		}
		for i, f := range rest {
			if i == 7 {
				break
			}
			if err := conn.Write(r.Context(), websocket.MessageBinary, f); err != nil {
				return
			}
		}
		if err := conn.Close(websocket.StatusServiceRestart, "bye"); err != nil {
			return
		}
	}))
	t.Cleanup(server.Close)
	return xrpc.NewClient(server.URL, "did:web:test", http.DefaultTransport, &xrpc.Stats{})
}

func TestSubscriberGoesOn(t *testing.T) {
	t.Parallel()
	const entries = 40
	c := history.New()
	c.Created("c", xrpctest.Other, xrpctest.Other, xrpctest.Listener)
	frames := [][]byte{xrpctest.MembershipFrame(t, 3, "c", xrpctest.Listener, "joined")}
	for seq := int64(1); seq <= entries; seq++ {
		frames = append(frames, xrpctest.MessageFrame(t, 3*(seq+1), seq, "c"))
		c.Entry("c", seq, history.DigestEntry(false, fmt.Sprint("id-", seq), xrpctest.Other.String(), 7, sha256.Sum256(fmt.Append(nil, "c", seq))))
	}
	cursorOf := func(i int) int64 { return 3 * int64(i+1) }
	tests := map[string]struct {
		cheat func(int, [][]byte) [][]byte
		want  string
	}{
		"honest": {nil, ""},
		"loses one": {func(n int, f [][]byte) [][]byte {
			if n == 3 && len(f) > 3 {
				return append([][]byte{f[0]}, f[2:]...)
			}
			return f
		}, " comes after "},
		"begins too late": {func(n int, f [][]byte) [][]byte {
			if n > 1 && len(f) > 1 {
				return f[1:]
			}
			return f
		}, " comes after "},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			account, err := xrpc.NewAccount(1)
			if err != nil {
				t.Fatal(err)
			}
			s := &Subscriber{
				Name: "sub", Account: account, Observer: history.NewObserver("sub", xrpctest.Listener), Nodes: []*xrpc.Client{fakeStream(t, frames, cursorOf, tt.cheat)},
				From: new(int64), rng: rand.New(rand.NewPCG(1, 2)), counts: &StreamCounts{}, ready: make(chan struct{}),
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Listen(ctx) }()
			err = xrpc.Until(t.Context(), 20*time.Second, func() (bool, error) { return s.Observer.Missing(c) == 0, nil })
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			found := s.Observer.Judge(c)
			if tt.want == "" {
				if len(found) > 0 {
					t.Errorf("an honest server: %v", found)
				}
				return
			}
			if len(found) == 0 || !strings.Contains(fmt.Sprint(found), tt.want) {
				t.Errorf("found %v, want %q", found, tt.want)
			}
		})
	}
}

// X8: the server announces a restart in an info event, which has no id. The subscriber resumes from
// the event before it, and loses nothing.
func TestSubscriberTakesInfoWithoutID(t *testing.T) {
	t.Parallel()
	const convo, at = "c", "2026-11-20T10:11:12.345Z"
	joined := fmt.Sprintf("id: 3\nevent: membershipEvent\ndata: {\"cursor\":\"3\",\"convoId\":%q,\"did\":%q,\"by\":%q,\"change\":\"joined\",\"createdAt\":%q}\n\n",
		convo, xrpctest.Listener, xrpctest.Other, at)
	message := func(cursor, seq int) string {
		return fmt.Sprintf("id: %d\nevent: messageEvent\ndata: {\"cursor\":\"%d\",\"message\":{\"id\":\"id-%d\",\"convoId\":%q,\"sender\":%q,"+
			"\"ciphertext\":{\"$bytes\":\"aGk\"},\"epoch\":7,\"seq\":%d,\"createdAt\":%q,\"messageType\":\"application\"}}\n\n",
			cursor, cursor, seq, convo, xrpctest.Other, seq, at)
	}
	const restarting = "event: infoEvent\ndata: {\"cursor\":\"9\",\"info\":\"Restarting: reconnect after 5 ms\"}\n\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		switch r.Header.Get("Last-Event-ID") {
		case "":
			fmt.Fprint(w, joined, message(6, 1), restarting)
		case "6":
			fmt.Fprint(w, message(9, 2))
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	want := history.New()
	want.Created(convo, xrpctest.Other, xrpctest.Other, xrpctest.Listener)
	for seq := int64(1); seq <= 2; seq++ {
		want.Entry(convo, seq, history.DigestEntry(false, fmt.Sprint("id-", seq), xrpctest.Other.String(), 7, sha256.Sum256([]byte("hi"))))
	}
	s := &Subscriber{
		Name: "sub", Account: xrpctest.Account(t, 1), Observer: history.NewObserver("sub", xrpctest.Listener), ServerSent: true,
		Nodes: []*xrpc.Client{xrpc.NewClient(server.URL, "did:web:test", http.DefaultTransport, &xrpc.Stats{})},
		rng:   rand.New(rand.NewPCG(1, 2)), counts: &StreamCounts{}, ready: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Listen(ctx) }()
	err := xrpc.Until(t.Context(), 20*time.Second, func() (bool, error) {
		select {
		case err := <-done:
			done <- err
			return true, err
		default:
			return s.Observer.Missing(want) == 0, nil
		}
	})
	cancel()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if found := s.Observer.Judge(want); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}
