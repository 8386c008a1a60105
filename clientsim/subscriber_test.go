package clientsim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"
)

// frameOf makes a frame with another encoder than the reader is made by.
func frameOf(t *testing.T, header, body map[string]any) []byte {
	t.Helper()
	var frame []byte
	for _, part := range []map[string]any{header, body} {
		b, err := atdata.MarshalCBOR(part)
		if err != nil {
			t.Fatal(err)
		}
		frame = append(frame, b...)
	}
	return frame
}

func messageFrame(t *testing.T, cursor, seq int64, convo string) []byte {
	t.Helper()
	return frameOf(t, map[string]any{"op": int64(1), "t": "#messageEvent"}, map[string]any{
		"cursor": cursor, "message": map[string]any{
			"id": fmt.Sprint("id-", seq), "convoId": convo, "sender": other.String(), "ciphertext": atdata.Bytes(fmt.Append(nil, convo, seq)),
			"epoch": int64(7), "seq": seq, "createdAt": "2026-11-20T10:11:12.345Z", "messageType": "application", "unknown": []any{int64(1), nil},
		},
	})
}

func membershipFrame(t *testing.T, cursor int64, convo string, did syntax.DID, change string) []byte {
	t.Helper()
	return frameOf(t, map[string]any{"op": int64(1), "t": "#membershipEvent"}, map[string]any{
		"cursor": cursor, "convoId": convo, "did": did.String(), "by": other.String(), "change": change, "epoch": int64(7),
		"seq": int64(0), "commitNeeded": true, "createdAt": "2026-11-20T10:11:12.345Z",
	})
}

func TestReadFrame(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 10, 11, 12, 345e6, time.UTC)
	got, err := readFrame(messageFrame(t, 70000, 3, "c"))
	want := happening{
		cursor: 70000, kind: toldMessage, convo: "c", seq: 3, epoch: 7, id: "id-3", sender: other.String(), body: []byte("c3"),
		form: "application", created: "2026-11-20T10:11:12.345Z", at: at,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(happening{})); err != nil || diff != "" {
		t.Errorf("a message: %v, (-want +got)\n%s", err, diff)
	}
	if got, err = readFrame(membershipFrame(t, 5, "c", vigilant, "left")); err != nil || !got.needed || got.did != vigilant.String() {
		t.Errorf("a membership: %+v, %v", got, err)
	}
	_, err = readFrame(frameOf(t, map[string]any{"op": int64(-1)}, map[string]any{"error": "FutureCursor", "message": "no"}))
	if err == nil || err.Error() != "stream: FutureCursor: no" {
		t.Errorf("an error frame: %v", err)
	}
	sound := messageFrame(t, 1, 1, "c")
	for name, frame := range map[string][]byte{
		"nothing":             {},
		"cut short":           sound[:len(sound)-1],
		"something behind it": append(sound[:len(sound):len(sound)], 0),
		"indefinite length":   []byte("\xbf\x62op\x01\x61t\x65#x\xff"),
		"a long 1":            []byte("\xa2\x61t\x6d#messageEvent\x62op\x18\x01\xa0"),
		"keys out of order":   []byte("\xa2\x62op\x01\x61t\x6d#messageEvent\xa0"),
		"no t":                frameOf(t, map[string]any{"op": int64(1)}, map[string]any{}),
		"another t":           frameOf(t, map[string]any{"op": int64(1), "t": "#otherEvent"}, map[string]any{}),
		"no hash in t":        frameOf(t, map[string]any{"op": int64(1), "t": "messageEvent"}, map[string]any{}),
		"no cursor":           frameOf(t, map[string]any{"op": int64(1), "t": "#welcomeEvent"}, map[string]any{"convoId": "c", "deviceId": "d"}),
	} {
		if h, err := readFrame(frame); err == nil {
			t.Errorf("%s: read as %+v", name, h)
		}
	}
}

func TestReadServerSent(t *testing.T) {
	t.Parallel()
	h, err := readServerSent("12", "messageEvent", []byte(`{"cursor":"12","message":{"id":"i","convoId":"c","sender":"s","ciphertext":{"$bytes":"aGk"},
		"epoch":1,"seq":2,"createdAt":"2026-11-20T10:11:12.345Z","messageType":"application"}}`))
	if err != nil || h.cursor != 12 || h.seq != 2 || string(h.body) != "hi" || h.convo != "c" {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := readServerSent("13", "messageEvent", []byte(`{"cursor":"12"}`)); err == nil {
		t.Error("an id that is not the cursor is taken")
	}
}

// fakeStream serves the frames by their cursors, from the one that is asked for, and hangs up after each few. cheat may change what
// is sent.
func fakeStream(t *testing.T, frames [][]byte, cursorOf func(int) int64, cheat func(connection int, frames [][]byte) [][]byte) *Client {
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
	return NewClient(server.URL, "did:web:test", http.DefaultTransport, &Stats{})
}

func TestSubscriberGoesOn(t *testing.T) {
	t.Parallel()
	const entries = 40
	c := NewChronicle()
	c.Begun("c", other, other, vigilant)
	frames := [][]byte{membershipFrame(t, 3, "c", vigilant, "joined")}
	for seq := int64(1); seq <= entries; seq++ {
		frames = append(frames, messageFrame(t, 3*(seq+1), seq, "c"))
		c.Entry("c", seq, markOf(false, fmt.Sprint("id-", seq), other.String(), 7, sha256.Sum256(fmt.Append(nil, "c", seq))))
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
			account, err := NewAccount(1)
			if err != nil {
				t.Fatal(err)
			}
			s := &Subscriber{
				Name: "sub", Account: account, Vigil: NewVigil("sub", vigilant), Nodes: []*Client{fakeStream(t, frames, cursorOf, tt.cheat)},
				From: new(int64), rng: rand.New(rand.NewPCG(1, 2)), tally: &streamTally{}, ready: make(chan struct{}),
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- s.Listen(ctx) }()
			err = until(t.Context(), 20*time.Second, func() (bool, error) { return s.Vigil.Missing(c) == 0, nil })
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			found := s.Vigil.Judge(c)
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
