package push

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Finding A22: why a webhook was not called is one of a few words, so that it can be a metric's label.
func TestReasons(t *testing.T) {
	t.Parallel()
	serve := func(answer http.HandlerFunc) string {
		s := httptest.NewServer(answer)
		t.Cleanup(s.Close)
		return s.URL
	}
	status := func(code int) string {
		return serve(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) })
	}
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	ended := httptest.NewServer(http.NotFoundHandler())
	ended.Close()
	here, outside := NewWebhooks(true), NewWebhooks(false)
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for want, call := range map[string]func() error{
		reasonStatus:     func() error { return here.challenge(t.Context(), Target{Address: status(http.StatusNotFound)}) },
		reasonForbidden:  func() error { return outside.challenge(t.Context(), Target{Address: status(http.StatusOK)}) },
		reasonTimeout:    func() error { return here.challenge(late, Target{Address: status(http.StatusOK)}) },
		reasonTLS:        func() error { return here.challenge(t.Context(), Target{Address: secure.URL}) },
		reasonConnection: func() error { return here.challenge(t.Context(), Target{Address: ended.URL}) },
		reasonChallenge:  func() error { return here.challenge(t.Context(), Target{Address: status(http.StatusOK)}) },
		reasonName:       func() error { return here.challenge(t.Context(), Target{Address: "https://nowhere.invalid"}) },
		reasonOther:      func() error { return errors.New("this node cannot call apns") },
	} {
		if err := call(); err == nil || reasonOf(err) != want {
			t.Errorf("%v is %q, want %q", err, reasonOf(err), want)
		}
	}
	for _, code := range []int{http.StatusGone, http.StatusTooManyRequests, http.StatusBadGateway} {
		if err := here.challenge(t.Context(), Target{Address: status(code)}); reasonOf(err) != reasonStatus {
			t.Errorf("%v is %q", err, reasonOf(err))
		}
	}
	if reason := reasonOf(io.ErrUnexpectedEOF); reason != reasonConnection {
		t.Errorf("an answer that was cut is %q", reason)
	}
}
