package main

import (
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// Above level debug the log has no caller and no content. The test has a conversation, refusals and
// a directory that does not answer.
func TestLogNamesNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := boot(t, nil, w.flags("--database-url", pgtest.URL(t), "--log-level", "info", "--log-format", "json")...)
	w.use(s.admin, s.public)
	alice, bob := w.user(), w.user()
	c := alice.create(bob)
	bob.query(mlsapi.NSIDGetWelcome, "convoId", c.id).must().ok()
	message := alice.message(c, "the body of the message, which is a secret")
	alice.procedure(mlsapi.NSIDSendMessage, message).must().ok()
	conflict := alice.message(c, "another body")
	conflict.IdempotencyKey = message.IdempotencyKey
	alice.procedure(mlsapi.NSIDSendMessage, conflict).must().fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
	bob.procedure(mlsapi.NSIDSendMessage, message).must().fails(http.StatusForbidden, mlsapi.ErrSenderMismatch)
	outsider := w.user()
	w.plc.Close()
	outsider.query(mlsapi.NSIDGetConvos).must().fails(http.StatusServiceUnavailable, "ServiceUnavailable")
	s.stop()

	log := s.stderr.String()
	if !strings.Contains(log, "a token cannot be checked") {
		t.Errorf("the directory's failure is not in the log:\n%s", log)
	}
	secrets := map[string]string{
		"ciphertext":        base64.StdEncoding.EncodeToString(message.Ciphertext)[:40],
		"ciphertext in hex": hex.EncodeToString(message.Ciphertext)[:40],
		"content":           "which is a secret", "key": *message.IdempotencyKey, "DID": "did:",
		"alice": alice.did().Identifier(), "bob": bob.did().Identifier(), "the outsider": outsider.did().Identifier(),
	}
	for name, secret := range secrets {
		if strings.Contains(strings.ReplaceAll(log, "did:…", ""), secret) {
			t.Errorf("%s is in the log:\n%s", name, log)
		}
	}
}
