package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"mlsd/internal/pgtest"
)

// A server that is ready is healthy, also by its listen address alone. One that has ended is not.
func TestHealth(t *testing.T) {
	t.Parallel()
	s := boot(t, nil, "--database-url", pgtest.URL(t))
	for _, flag := range []string{"--admin-url=" + s.admin, "--admin-listen=" + strings.TrimPrefix(s.admin, "http://")} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{"mlsd", flag, "health"}, nil, &out, io.Discard); err != nil ||
			out.String() != "ok\n" {
			t.Errorf("%s: %v, %q", flag, err, out.String())
		}
	}
	s.cancel()
	<-s.ended
	if err := run(t.Context(), []string{"mlsd", "--admin-url", s.admin, "health"}, nil, io.Discard,
		io.Discard); err == nil {
		t.Error("a server that has ended is healthy")
	}
}

// The command fails, and says what /readyz says.
func TestHealthNotReady(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "the database cannot be reached; asked "+r.URL.Path, http.StatusServiceUnavailable)
	}))
	defer s.Close()
	err := run(t.Context(), []string{"mlsd", "--admin-url", s.URL, "health"}, nil, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(),
		"503 Service Unavailable: the database cannot be reached; asked /readyz") {
		t.Errorf("got %v", err)
	}
}
