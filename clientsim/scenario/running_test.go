package scenario

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// The refusal of a first call is explained by what the run knows of the set-up. G16: it was
// reported as broken promises, or retried in silence.
func TestRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	dir := &testbed.Directory{Site: &xrpc.Site{URL: "http://127.0.0.1:2582"}}
	const did = "did:web:localhost%3A8080"
	for name, test := range map[string]struct {
		status   int
		audience string
		ahead    time.Duration
		asked    bool
		want     string
	}{
		"another DID": {401, "did:web:other.example", time.Hour, false,
			"its DID is " + did + ", and --service-did is did:web:other.example"},
		"a fast clock":      {401, did, 95 * time.Second, true, "its clock is 1m35s ahead"},
		"a slow clock":      {503, did + "#atproto_mls", -time.Hour, true, "its clock is 1h0m0s behind"},
		"another directory": {401, did, 30 * time.Second, false, "start it with MLSD_PLC_URL=http://127.0.0.1:2582"},
		"no directory":      {503, did, 0, false, "start it with MLSD_PLC_URL=http://127.0.0.1:2582"},
		"not admitted":      {403, did, 0, true, "MLSD_ADMIT"},
		"busy":              {429, did, 0, false, "because of this answer (m: 429 Name: text)"},
		"something else":    {401, did, 0, true, "because of this answer (m: 401 Name: text)"},
	} {
		s := &running{base: "http://127.0.0.1:8080", did: did, ahead: test.ahead}
		refused := &xrpc.CallError{Method: "m", Status: test.status, Name: "Name", Message: "text"}
		err := s.explain(refused, testbed.Target{Audience: test.audience, Dir: dir}, test.asked)
		if !errors.Is(err, refused) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if err := (&running{}).explain(nil, testbed.Target{}, false); err != nil {
		t.Errorf("a call that was answered: %v", err)
	}
	late := http.ErrHandlerTimeout
	if err := (&running{}).explain(late, testbed.Target{}, false); !errors.Is(err, late) {
		t.Errorf("a call without an answer: %v", err)
	}
}
