package node

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"mlsd/internal/serviceauth"
)

// G14: an absent PLC directory is named in the log and in /readyz, with the cause: at once, then once
// a minute with the number of failures, and when it answers again. The node stays ready.
func TestPLCDirectoryFails(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.ready.Store(true)
	if err := n.schema.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	lines, log := newLines()
	now := time.Now()
	n.plc = newPLCWatch("https://plc.example.com", log, func() time.Time { return now })
	lookUp := func(source serviceauth.LookupSource, outcome serviceauth.LookupOutcome, err error) string {
		t.Helper()
		lines.Reset()
		n.plc.LookedUp(serviceauth.Lookup{Source: source, Outcome: outcome, Err: err})
		return lines.String()
	}
	refused := &url.Error{Op: "Get", URL: "https://plc.example.com/did:plc:abc", Err: errors.New("connection refused")}
	fails := func() string { return lookUp(serviceauth.LookupPLC, serviceauth.LookupFailed, refused) }
	readyz := func(want string) {
		t.Helper()
		rec := httptest.NewRecorder()
		n.readiness()(rec, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		if got := rec.Body.String(); rec.Code != http.StatusOK || got != want {
			t.Errorf("/readyz: %d %s, want %s", rec.Code, got, want)
		}
	}
	for name, line := range map[string]string{
		"another host":   lookUp(serviceauth.LookupWeb, serviceauth.LookupFailed, refused),
		"a limit":        lookUp(serviceauth.LookupPLC, serviceauth.LookupBusy, serviceauth.ErrBusy),
		"no such DID":    lookUp(serviceauth.LookupPLC, serviceauth.LookupInvalid, serviceauth.ErrIssuer),
		"a DID with key": lookUp(serviceauth.LookupPLC, serviceauth.LookupFound, nil),
	} {
		if line != "" {
			t.Errorf("%s: %s", name, line)
		}
	}
	readyz("ok\n")
	wantLine := func(line string, want ...string) {
		t.Helper()
		for _, part := range want {
			if !strings.Contains(line, part) {
				t.Errorf("the line lacks %q: %s", part, line)
			}
		}
		if strings.Contains(line, "did:") || strings.Count(line, "\n") != 1 {
			t.Errorf("the line: %s", line)
		}
	}
	wantLine(fails(), "level=ERROR", "look-ups at the PLC directory fail", "directory=https://plc.example.com", "failed=1",
		"connection refused")
	readyz("ok, but look-ups at the PLC directory https://plc.example.com fail since " +
		now.UTC().Format(time.RFC3339) + ": connection refused\n")
	if line := fails() + fails(); line != "" {
		t.Errorf("it is said again: %s", line)
	}
	now = now.Add(sayEvery)
	wantLine(fails(), "failed=3", "for=1m0s")
	now = now.Add(plcRemembered + time.Second)
	readyz("ok\n") // nobody has looked anything up for long
	wantLine(fails(), "failed=1", "for=6m1s")
	wantLine(lookUp(serviceauth.LookupPLC, serviceauth.LookupInvalid, serviceauth.ErrIssuer), "level=WARN",
		"answers again", "directory=https://plc.example.com", "after=6m1s")
	readyz("ok\n")
}
