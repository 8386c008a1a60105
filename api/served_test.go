package api_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/features/requests"
	"mlsd/internal/pgtest"
)

// Finding S3: each request of a verified caller counts, with what became of it and the time that it
// took.
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
	publication := &mlsapi.PublishKeyPackageInput{KeyPackage: body, CipherSuite: alice.creation(newGroup(t)).CipherSuite,
		IdempotencyKey: newKey()}
	alice.post(mlsapi.NSIDPublishKeyPackage, publication).ok()
	pgtest.Age(t, w.db, "idempotency_keys", 25*time.Hour, "expires_at")
	alice.post(mlsapi.NSIDPublishKeyPackage, publication).ok()
	alice.get(mlsapi.NSIDGetEpoch, "convoId", c.id).ok()
	alice.get(mlsapi.NSIDGetEpoch, "convoId", uuid.NewString()).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	if status := w.anonymous(mlsapi.NSIDGetEpoch); status != http.StatusUnauthorized {
		t.Errorf("without a token: %d", status)
	}

	want := []requests.Request{
		{NSID: mlsapi.NSIDSendMessage, Key: *hello.IdempotencyKey},
		{NSID: mlsapi.NSIDSendMessage, Key: *hello.IdempotencyKey, Replayed: true},
		{NSID: mlsapi.NSIDSendMessage, Key: *hello.IdempotencyKey, Error: mlsapi.ErrIdempotencyConflict, Conflict: true},
		{NSID: mlsapi.NSIDPublishKeyPackage, Key: *publication.IdempotencyKey},
		{NSID: mlsapi.NSIDPublishKeyPackage, Key: *publication.IdempotencyKey, Expired: true},
		{NSID: mlsapi.NSIDGetEpoch},
		{NSID: mlsapi.NSIDGetEpoch, Error: mlsapi.ErrConvoNotFound},
	}
	var got []requests.Request
	for i, r := range w.served.take() {
		if r.Took <= 0 || r.Took > time.Minute {
			t.Errorf("request %d took %s", i, r.Took)
		}
		if r.Admitted {
			got = append(got, requests.Request{
				Caller: r.Caller, NSID: r.NSID, Key: r.Key, KeyUsed: r.KeyUsed, Replayed: r.Replayed, Expired: r.Expired,
				Error: r.Error, Conflict: r.Conflict,
			})
		}
	}
	for i := range want {
		want[i].Caller, want[i].KeyUsed = alice.did().String(), want[i].Key != ""
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
