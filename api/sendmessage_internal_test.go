package api

import (
	"testing"

	"mlsd/api/mlsapi"
)

// The hash of a message's content is computed as the hash of any other request's content.
func TestContentHash(t *testing.T) {
	t.Parallel()
	key, kind := "key", "image \u2028\"<"
	for _, in := range []mlsapi.SendMessageInput{
		{},
		{ConvoID: "convo", SenderDID: "did:plc:alice", Epoch: 1 << 52, Ciphertext: []byte("hello")},
		{ConvoID: "convo", SenderDID: "did:plc:alice", Ciphertext: make([]byte, 2*keptBuffer), IdempotencyKey: &key, EmbedType: &kind, EmbedURI: &key},
	} {
		if contentHash(in) != content(in.Fields()).Hash() {
			t.Errorf("two hashes for %.100v", in)
		}
	}
}
