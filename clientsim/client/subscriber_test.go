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

	"mlsd/api/lexcodec"
	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
	"mlsd/clientsim/xrpc/xrpctest"
)

// fakeStream serves the frames from the requested cursor on. After every seven frames, it closes
// the connection. cheat may change the frames that it sends.
func fakeStream(t *testing.T, frames [][]byte, cursorOf func(int) int64,
	cheat func(connection int, frames [][]byte) [][]byte) *xrpc.Client {
	t.Helper()
	var connections atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "getSubscriptionTicket") {
			fmt.Fprint(w, `{"ticket":"tick",`+
				`"url":"https://example.com/xrpc/blue.catbird.mls.subscribeConvoEvents?ticket=tick",`+
				`"expiresAt":"2026-11-20T10:11:12.345Z"}`)
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
		c.Entry("c", seq, history.DigestEntry(false, fmt.Sprint("id-", seq), xrpctest.Other.String(), 7,
			sha256.Sum256(fmt.Append(nil, "c", seq))))
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
				Name: "sub", Account: account, Observer: history.NewObserver("sub", xrpctest.Listener),
				Nodes: []*xrpc.Client{fakeStream(t, frames, cursorOf, tt.cheat)},
				From:  new(int64), rng: rand.New(rand.NewPCG(1, 2)), counts: &StreamCounts{}, ready: make(chan struct{}),
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Listen(ctx) }()
			err = xrpc.Until(t.Context(), time.Minute, func() (bool, error) { return s.Observer.Missing(c) == 0, nil })
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
// the event before the info event, and loses nothing.
func TestSubscriberTakesInfoWithoutID(t *testing.T) {
	t.Parallel()
	const convo, at = "c", "2026-11-20T10:11:12.345Z"
	joined := fmt.Sprintf("id: 3\nevent: membershipEvent\ndata: "+
		"{\"cursor\":\"3\",\"convoId\":%q,\"did\":%q,\"by\":%q,\"change\":\"joined\",\"createdAt\":%q}\n\n",
		convo, xrpctest.Listener, xrpctest.Other, at)
	message := func(cursor, seq int) string {
		return fmt.Sprintf("id: %d\nevent: messageEvent\ndata: "+
			"{\"cursor\":\"%d\",\"message\":{\"id\":\"id-%d\",\"convoId\":%q,\"sender\":%q,"+
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
		want.Entry(convo, seq, history.DigestEntry(false, fmt.Sprint("id-", seq), xrpctest.Other.String(), 7,
			sha256.Sum256([]byte("hi"))))
	}
	s := &Subscriber{
		Name: "sub", Account: xrpctest.Account(t, 1), Observer: history.NewObserver("sub", xrpctest.Listener),
		ServerSent: true,
		Nodes:      []*xrpc.Client{xrpc.NewClient(server.URL, "did:web:test", http.DefaultTransport, &xrpc.Stats{})},
		rng:        rand.New(rand.NewPCG(1, 2)), counts: &StreamCounts{}, ready: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Listen(ctx) }()
	err := xrpc.Until(t.Context(), time.Minute, func() (bool, error) {
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

// lostServer is a server that has lost events: its stream begins with OutdatedCursor, and goes on
// with events of a convo whose log has four entries. The subscriber must have read two pages of
// that log.
func lostServer(t *testing.T, asked *atomic.Value) *xrpc.Client {
	t.Helper()
	at := lexcodec.NewDatetime(time.Date(2026, 11, 20, 10, 11, 12, 0, time.UTC))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch name := r.URL.Path[strings.LastIndex(r.URL.Path, ".")+1:]; name {
		case "getConvos":
			out := mlsapi.GetConvosOutput{Conversations: []mlsapi.ConvoView{{ID: "c", Creator: xrpctest.Other, CreatedAt: at,
				Members: []mlsapi.MemberView{}}}}
			w.Write(out.AppendJSON(nil))
		case "getMessages":
			since, _ := strconv.ParseInt(q.Get("sinceSeq"), 10, 64)
			out := mlsapi.GetMessagesOutput{Messages: []mlsapi.MessageView{}}
			for seq := since + 1; seq <= min(since+3, 4); seq++ {
				out.Messages = append(out.Messages,
					mlsapi.MessageView{ID: fmt.Sprint("id-", seq), ConvoID: "c", Seq: seq, Sender: xrpctest.Other, CreatedAt: at})
			}
			if since+3 < 4 {
				out.Cursor = new("more")
			}
			w.Write(out.AppendJSON(nil))
		case "getSubscriptionTicket":
			fmt.Fprintf(w, `{"ticket":"t","url":"ws://%s/xrpc/%s?ticket=t","expiresAt":%q}`, r.Host, NSIDSubscribe, at)
		default:
			asked.Store(q.Get("cursor") + " " + q.Get("position"))
			conn, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			frames := [][]byte{xrpctest.FrameOf(t, map[string]any{"op": 1, "t": "#infoEvent"},
				map[string]any{"name": "OutdatedCursor"})}
			for seq := int64(3); seq <= 6; seq++ {
				frames = append(frames, xrpctest.MessageFrame(t, 1000+seq, seq, "c"))
			}
			for _, f := range frames {
				if err := conn.Write(r.Context(), websocket.MessageBinary, f); err != nil {
					return
				}
			}
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	return xrpc.NewClient(server.URL, "did:web:test", http.DefaultTransport, &xrpc.Stats{})
}

// E3: a subscriber whose server has lost events reads its convos again, and goes on with the
// stream.
func TestSubscriberReadsAgain(t *testing.T) {
	t.Parallel()
	account, err := xrpc.NewAccount(1)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Value
	news := make(chan int64, 10)
	s := &Subscriber{
		Name: "sub", Account: account, Observer: history.NewObserver("sub", xrpctest.Listener),
		Nodes:     []*xrpc.Client{lostServer(t, &asked)},
		ReadAgain: true, rng: rand.New(rand.NewPCG(1, 2)), counts: &StreamCounts{},
		ready:   make(chan struct{}),
		OnEvent: func(h *xrpc.Event, _ time.Time, _ bool) { news <- h.Seq },
	}
	s.Observer.Observe(xrpc.Event{Cursor: 1, Kind: xrpc.EventMembership, Convo: "c", Seq: 1,
		DID: xrpctest.Listener.String(), Change: "joined"})
	for seq := int64(2); seq <= 9; seq++ {
		s.Observer.Observe(xrpc.Event{Cursor: seq, Position: fmt.Sprint("0.0:", seq), Kind: xrpc.EventMessage, Convo: "c",
			Seq: seq, ID: "lost", Sender: "y"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Listen(ctx) }()
	for got := int64(0); got < 6; { // Observe calls an event that it knows new; the log says otherwise
		select {
		case got = <-news:
		case <-time.After(time.Minute):
			t.Fatal("the stream does not go on")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if cursor, ok := s.Observer.Resume(false); cursor != 1007 || !ok {
		t.Errorf("it goes on at %d, %t", cursor, ok)
	}
	if text := asked.Load().(string); text != "9 " && text != "10 0.0:9" {
		t.Errorf("it asked from %q", text)
	}
	if found := s.Observer.Judge(history.New()); len(found) > 0 {
		for _, v := range found {
			if v.Kind != history.Broken || !strings.Contains(v.What, "never in this convo") {
				t.Errorf("found %v", v)
			}
		}
	}
}
