package api_test

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"mlsd/api"
	"mlsd/api/mlsapi"
)

// Events that wait for a slow reader are written together. Each comes once, in order and whole, also
// those around the lengths at which the header of a frame changes.
func TestWaitingEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	k := alice.dial()
	frames := h.next(t)
	r := alice.stream(nil)
	lines := h.next(t)
	var sizes []int
	for n := range 20 {
		sizes = append(sizes, n, 10_000, 65_530-200+20*n)
	}
	for i, n := range sizes {
		frames.events <- large(int64(i+1), n)
		lines.events <- large(int64(i+1), n)
	}
	for i, n := range sizes {
		body := welcomeBody(int64(i + 1))
		body["deviceId"] = large(0, n).Detail.DeviceID
		k.wants(welcomeHeader(), body)
		if got := r.event(); got.id != strconv.Itoa(i+1) || len(got.data) < n {
			t.Fatalf("event %d has the id %s and %d bytes", i+1, got.id, len(got.data))
		}
	}
}

// An event that was sent long ago does not end the connection at the next ping.
func TestPingsAfterAnEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Hurry(api.Pace{Write: 250 * time.Millisecond, Ping: 30 * time.Millisecond, Pong: time.Minute})
	h, alice := w.pretend(), w.user()
	k := alice.dial()
	s := h.next(t)
	s.events <- welcomeEvent(1)
	k.wants(welcomeHeader(), welcomeBody(1))
	go func() { _, _, _ = k.ws.Reader(t.Context()) }() // which answers pings
	for range 20 {                                     // for longer than a write may take
		select {
		case <-k.pinged:
		case <-s.closed:
			t.Fatal("the connection has ended")
		case <-time.After(time.Minute):
			t.Fatal("no further ping came")
		}
	}
}

// What a client sends behind its handshake, in the same packet, is read.
func TestFrameWithTheHandshake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pretend()
	alice := w.user()
	conn, err := net.Dial("tcp", w.listen())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ping := "\x89\x85\x00\x00\x00\x00early"
	if _, err := fmt.Fprintf(conn, "GET /xrpc/%s HTTP/1.1\r\nHost: mls.example.com\r\nConnection: Upgrade\r\nUpgrade: "+
		"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"+
		"Authorization: %s\r\n\r\n%s",
		mlsapi.NSIDSubscribeConvoEvents, alice.authorization(mlsapi.NSIDSubscribeConvoEvents), ping); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for len(got) < 5 || string(got[len(got)-5:]) != "early" {
		next := make([]byte, 1)
		if _, err := io.ReadFull(conn, next); err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		got = append(got, next...)
	}
	if pong := "\r\n\r\n\x8a\x05early"; string(got[len(got)-len(pong):]) != pong {
		t.Errorf("the end is %q", got)
	}
}
