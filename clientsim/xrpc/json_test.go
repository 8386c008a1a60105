package xrpc_test

import (
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/xrpc"
)

// A page of messages is decoded only if it has each field that the lexicon requires, at each depth.
func TestDecodeRequiresFields(t *testing.T) {
	t.Parallel()
	const rest = `"id":"m","convoId":"c","sender":"did:plc:ewvi7nxzyoun6zhxrhs64oiz","epoch":1,"seq":1,` +
		`"createdAt":"2026-11-22T09:30:00Z"`
	for body, complete := range map[string]bool{
		`{"messages":[{` + rest + `,"ciphertext":{"$bytes":"AA"}}],"lastSeq":1}`:               true,
		`{"messages":[],"lastSeq":1}`:                                                          true,
		`{"lastSeq":1}`:                                                                        false,
		`{"messages":null,"lastSeq":1}`:                                                        false,
		`{"messages":[{` + rest + `}],"lastSeq":1}`:                                            false,
		`{"messages":[{` + rest + `,"ciphertext":null}],"lastSeq":1}`:                          false,
		`{"messages":[{` + rest + `,"ciphertext":{"$bytes":"*"}}],"lastSeq":1}`:                false,
		`{"messages":[{` + rest + `,"ciphertext":{"$bytes":"AA"},"epoch":2}],"lastSeq":1}`:     false, // twice
		`{"messages":[{` + rest + `,"ciphertext":{"$bytes":"AA"},"later":"new"}],"lastSeq":1}`: true,
	} {
		if _, err := xrpc.Decode[mlsapi.GetMessagesOutput]([]byte(body)); (err == nil) != complete {
			t.Errorf("%s: %v", body, err)
		}
	}
}
