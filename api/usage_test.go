package api_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
	"mlsd/internal/usage"
)

// Finding S3: each request of a verified caller is reported with what became of it and the time
// that it took.
func TestServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice := w.user()
	c := alice.create()
	w.served.take()

	hello := alice.message(c, "hello")
	alice.post(mlsapi.NSIDSendMessage, hello).ok()
	alice.post(mlsapi.NSIDSendMessage, hello).ok()
	other := alice.message(c, "other")
	other.IdempotencyKey = hello.IdempotencyKey
	alice.post(mlsapi.NSIDSendMessage, other).fails(http.StatusConflict, mlsapi.ErrIdempotencyConflict)
	body, _ := alice.KeyPackage(t)
	publication := &mlsapi.PublishKeyPackageInput{KeyPackage: body, CipherSuite: alice.creation(newGroup(t)).CipherSuite, IdempotencyKey: newKey()}
	alice.post(mlsapi.NSIDPublishKeyPackage, publication).ok()
	pgtest.Age(t, w.db, "idempotency_keys", 25*time.Hour, "expires_at")
	alice.post(mlsapi.NSIDPublishKeyPackage, publication).ok()
	alice.get(mlsapi.NSIDGetEpoch, "convoId", c.id).ok()
	alice.get(mlsapi.NSIDGetEpoch, "convoId", "none").fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	if status := w.anonymous(mlsapi.NSIDGetEpoch); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}

	want := []usage.Request{
		{NSID: mlsapi.NSIDSendMessage, Key: *hello.IdempotencyKey},
		{NSID: mlsapi.NSIDSendMessage, Key: *hello.IdempotencyKey, Replayed: true},
		{NSID: mlsapi.NSIDSendMessage, Key: *hello.IdempotencyKey, Failed: true, Conflict: mlsapi.ErrIdempotencyConflict},
		{NSID: mlsapi.NSIDPublishKeyPackage, Key: *publication.IdempotencyKey},
		{NSID: mlsapi.NSIDPublishKeyPackage, Key: *publication.IdempotencyKey, Expired: true},
		{NSID: mlsapi.NSIDGetEpoch},
		{NSID: mlsapi.NSIDGetEpoch, Failed: true},
	}
	got := w.served.take()
	for i := range got {
		if got[i].Took <= 0 || got[i].Took > time.Minute {
			t.Errorf("request %d took %s", i, got[i].Took)
		}
		got[i].Took = 0
	}
	for i := range want {
		want[i].Caller = alice.did().String()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// anonymous sends a query without a token and returns the status.
func (w *world) anonymous(nsid string) int {
	w.t.Helper()
	recorder := httptest.NewRecorder()
	w.server.ServeHTTP(recorder, httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, "/xrpc/"+nsid, nil))
	return recorder.Code
}
