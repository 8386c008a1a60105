package xrpc_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/clientsim/xrpc"
	"mlsd/clientsim/xrpc/xrpctest"
)

func TestReadFrame(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 10, 11, 12, 345e6, time.UTC)
	got, err := xrpc.ReadFrame(xrpctest.MessageFrame(t, 70000, 3, "c"))
	want := xrpc.Event{
		Cursor: 70000, Kind: xrpc.EventMessage, Convo: "c", Seq: 3, Epoch: 7, ID: "id-3", Sender: xrpctest.Other.String(),
		Body:        []byte("c3"),
		MessageType: "application", Created: "2026-11-20T10:11:12.345Z", At: at,
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("a message: %v, (-want +got)\n%s", err, diff)
	}
	if got, err = xrpc.ReadFrame(xrpctest.MembershipFrame(t, 5, "c", xrpctest.Listener, "left")); err != nil ||
		!got.CommitNeeded || got.DID != xrpctest.Listener.String() {
		t.Errorf("a membership: %+v, %v", got, err)
	}
	info := xrpctest.FrameOf(t, map[string]any{"op": int64(1), "t": "#infoEvent"},
		map[string]any{"name": "OutdatedCursor", "message": "read again"})
	if got, err = xrpc.ReadFrame(info); err != nil || got.Kind != xrpc.EventInfo || got.Name != "OutdatedCursor" {
		t.Errorf("an info with a message: %+v, %v", got, err)
	}
	_, err = xrpc.ReadFrame(xrpctest.FrameOf(t, map[string]any{"op": int64(-1)},
		map[string]any{"error": "FutureCursor", "message": "no"}))
	if err == nil || err.Error() != "stream: FutureCursor: no" {
		t.Errorf("an error frame: %v", err)
	}
	sound := xrpctest.MessageFrame(t, 1, 1, "c")
	for name, frame := range map[string][]byte{
		"nothing":             {},
		"cut short":           sound[:len(sound)-1],
		"something behind it": append(sound[:len(sound):len(sound)], 0),
		"indefinite length":   []byte("\xbf\x62op\x01\x61t\x65#x\xff"),
		"a long 1":            []byte("\xa2\x61t\x6d#messageEvent\x62op\x18\x01\xa0"),
		"keys out of order":   []byte("\xa2\x62op\x01\x61t\x6d#messageEvent\xa0"),
		"a key twice":         []byte("\xa2\x62op\x01\x62op\x01\xa0"),
		"an unknown key": xrpctest.FrameOf(t, map[string]any{"op": int64(1), "t": "#infoEvent", "x": int64(1)},
			map[string]any{"name": "n"}),
		"no t":         xrpctest.FrameOf(t, map[string]any{"op": int64(1)}, map[string]any{}),
		"another t":    xrpctest.FrameOf(t, map[string]any{"op": int64(1), "t": "#otherEvent"}, map[string]any{}),
		"no hash in t": xrpctest.FrameOf(t, map[string]any{"op": int64(1), "t": "messageEvent"}, map[string]any{}),
		"no cursor": xrpctest.FrameOf(t, map[string]any{"op": int64(1), "t": "#welcomeEvent"},
			map[string]any{"convoId": "c", "deviceId": "d"}),
	} {
		if h, err := xrpc.ReadFrame(frame); err == nil {
			t.Errorf("%s: read as %+v", name, h)
		}
	}
}

func TestReadServerSent(t *testing.T) {
	t.Parallel()
	h, err := xrpc.ReadServerSent("12", "messageEvent",
		[]byte(`{"cursor":"12","message":{"id":"i","convoId":"c","sender":"s","ciphertext":{"$bytes":"aGk"},
		"epoch":1,"seq":2,"createdAt":"2026-11-20T10:11:12.345Z","messageType":"application"}}`))
	if err != nil || h.Cursor != 12 || h.Seq != 2 || string(h.Body) != "hi" || h.Convo != "c" {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := xrpc.ReadServerSent("13", "messageEvent", []byte(`{"cursor":"12"}`)); err == nil {
		t.Error("an id that is not the cursor is taken")
	}
	// X8: an info event has no id, whatever its cursor is: the id of the last event stays in force.
	info := []byte(`{"cursor":"12","info":"Restarting: reconnect after 500 ms"}`)
	if e, err := xrpc.ReadServerSent("", "infoEvent", info); err != nil || e.Kind != xrpc.EventInfo ||
		e.Name != "Restarting" {
		t.Errorf("an info event: %+v, %v", e, err)
	}
	if _, err := xrpc.ReadServerSent("12", "infoEvent", info); err == nil {
		t.Error("an info event with an id is taken")
	}
}
