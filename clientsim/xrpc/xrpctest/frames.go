package xrpctest

import (
	"fmt"
	"testing"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/syntax"
)

// FrameOf encodes a frame. It uses another encoder than the reader's, so that both check each
// other.
func FrameOf(t *testing.T, header, body map[string]any) []byte {
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

// MessageFrame is the frame of a messageEvent from Other.
func MessageFrame(t *testing.T, cursor, seq int64, convo string) []byte {
	t.Helper()
	return FrameOf(t, map[string]any{"op": int64(1), "t": "#messageEvent"}, map[string]any{
		"cursor": cursor, "message": map[string]any{
			"id": fmt.Sprint("id-", seq), "convoId": convo, "sender": Other.String(),
			"ciphertext": atdata.Bytes(fmt.Append(nil, convo, seq)),
			"epoch":      int64(7), "seq": seq, "createdAt": "2026-11-20T10:11:12.345Z", "messageType": "application",
			"unknown": []any{int64(1), nil},
		},
	})
}

// MembershipFrame is the frame of a membershipEvent by Other.
func MembershipFrame(t *testing.T, cursor int64, convo string, did syntax.DID, change string) []byte {
	t.Helper()
	return FrameOf(t, map[string]any{"op": int64(1), "t": "#membershipEvent"}, map[string]any{
		"cursor": cursor, "convoId": convo, "did": did.String(), "by": Other.String(), "change": change, "epoch": int64(7),
		"seq": int64(0), "commitNeeded": true, "createdAt": "2026-11-20T10:11:12.345Z",
	})
}

// Accounts in frames.
const (
	Listener = syntax.DID("did:plc:listener")
	Other    = syntax.DID("did:plc:other")
)
