// Package xrpctest has helpers for tests: a fake server, accounts, and frames of a stream.
package xrpctest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"mlsd/clientsim/xrpc"
)

// Say answers every request with a status, a body, and headers as names and values.
func Say(status int, body string, headers ...string) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// ServeHTTP implements http.Handler.
func (f *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	n := len(f.bodies)
	f.bodies = append(f.bodies, string(body))
	f.tokens = append(f.tokens, r.Header.Get("Authorization"))
	f.mu.Unlock()
	f.answer(n, w)
}

// Seen returns the bodies that arrived, and whether all tokens differ.
func (f *Server) Seen() (bodies []string, fresh bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tokens := slices.Compact(slices.Sorted(slices.Values(f.tokens)))
	return slices.Clone(f.bodies), len(tokens) == len(f.bodies)
}

// Call is a call of sendMessage with a key.
func Call() xrpc.Call {
	return xrpc.Call{Method: xrpc.NSID("sendMessage"), Body: []byte(`{"a":1}`), Key: "k", Convo: "c"}
}

// Serve serves a fake server until the test ends.
func Serve(t *testing.T, answer func(n int, w http.ResponseWriter)) (*Server, *httptest.Server) {
	t.Helper()
	fake := &Server{answer: answer}
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	return fake, server
}

// Account makes an account.
func Account(t *testing.T, serial int) *xrpc.Account {
	t.Helper()
	a, err := xrpc.NewAccount(serial)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Server answers calls with a function and remembers them.
type Server struct {
	answer func(n int, w http.ResponseWriter) // n counts from 0

	mu     sync.Mutex // guards what follows
	bodies []string
	tokens []string
}
