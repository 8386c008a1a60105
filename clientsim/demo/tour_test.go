package demo

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/testbed/testbedtest"
	"mlsd/clientsim/xrpc"
)

// guide walks a tour without a server.
type guide struct {
	t   *testing.T
	url string
}

func newGuide(t *testing.T) *guide {
	t.Helper()
	tour, err := NewTour(testbedtest.Directory(t), xrpc.DefaultServiceDID)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(tour.Handler())
	t.Cleanup(server.Close)
	return &guide{t, server.URL}
}

// ask posts a body, or gets where there is none.
func (g *guide) ask(status int, who, what, body string, pairs ...string) string {
	g.t.Helper()
	values := url.Values{"as": {who}}
	for i := 0; i+1 < len(pairs); i += 2 {
		values.Set(pairs[i], pairs[i+1])
	}
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(g.t.Context(), method, g.url+"/tour/"+what+"?"+values.Encode(), strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		g.t.Fatal(err)
	}
	if resp.StatusCode != status {
		g.t.Errorf("%s as %s: %s %s, want %d", what, who, resp.Status, answer, status)
	}
	return strings.TrimSuffix(string(answer), "\n")
}

// refuses makes a request that must be refused with the words of want.
func (g *guide) refuses(want, who, what, body string, pairs ...string) {
	g.t.Helper()
	if got := g.ask(400, who, what, body, pairs...); !strings.Contains(got, want) {
		g.t.Errorf("%s as %s: %q, want %q in it", what, who, got, want)
	}
}

func TestTourWithoutAServer(t *testing.T) {
	t.Parallel()
	g := newGuide(t)
	bob := g.ask(200, "bob", "did", "")
	g.ask(200, "alice", "group", "-")
	add := func() *mlsapi.AddMembersInput {
		t.Helper()
		body := g.ask(200, "alice", "add", "", "convo", "c", "did", bob, "keypackage", g.ask(200, "bob", "keypackage", ""))
		in, err := mlsapi.DecodeAddMembersInput([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	// A refused commit is not merged. It is made again.
	add()
	g.refuses("EpochMismatch: epoch 0 is stale", "alice", "accepted", `{"error":"EpochMismatch","message":"epoch 0 is stale; currentEpoch=1"}`)
	g.refuses("no commit waits", "alice", "accepted", `{"success":true,"newEpoch":1}`)
	in := add()
	if got := g.ask(200, "alice", "accepted", `{"success":true,"newEpoch":1}`); got != "alice is in epoch 1" {
		t.Errorf("accepted: %q", got)
	}
	g.refuses("WelcomeNotFound", "bob", "join", `{"error":"WelcomeNotFound","message":"none"}`)
	g.ask(200, "bob", "join", `{"convoId":"c","welcome":"`+base64.RawURLEncoding.EncodeToString(in.WelcomeMessage)+`"}`)
	message := g.ask(200, "alice", "message", "", "text", "hello, bob")
	page := `{"messages":[{"id":"1","convoId":"c","sender":"` + g.ask(200, "alice", "did", "") + `","ciphertext":` + message +
		`,"epoch":1,"seq":2,"createdAt":"2026-01-01T00:00:00.000Z"}]}`
	// A page reads the same when it is pasted again. Own messages are readable too.
	for _, who := range []string{"bob", "bob", "alice"} {
		if got := g.ask(200, who, "read", page); got != "alice: hello, bob" {
			t.Errorf("%s reads %q", who, got)
		}
	}
}

func TestTourRefusals(t *testing.T) {
	t.Parallel()
	g := newGuide(t)
	g.refuses(`as="mallory" is none of ["alice" "bob"]`, "mallory", "did", "")
	g.refuses("NSID", "alice", "token", "", "method", "no such method")
	g.refuses("no group yet", "alice", "message", "", "text", "hello")
	g.refuses("no group yet", "alice", "add", "")
	g.refuses("no group yet", "alice", "read", `{"messages":[]}`)
	g.refuses("no commit waits", "alice", "accepted", `{}`)
	g.refuses("tour: ", "bob", "join", `no JSON`)
	g.ask(200, "alice", "group", "-")
	g.refuses("keypackage", "alice", "add", "", "convo", "c", "did", "did:plc:abc", "keypackage", "!")
	g.refuses("DID", "alice", "add", "", "convo", "c", "did", "bob")
	if err := ServeTour(t.Context(), "0.0.0.0:0", xrpc.DefaultServiceDID, io.Discard); err == nil || !strings.Contains(err.Error(), "not on loopback") {
		t.Errorf("ServeTour on every address: %v", err)
	}
}
