package devserver

import (
	"bufio"
	"context"
	"net/http"
	"testing"
	"time"
)

const sendMessage, getConvos = "blue.catbird.mls.sendMessage", "blue.catbird.mls.getConvos"

func (f *fixture) plan(fault string) {
	f.t.Helper()
	ask[PlannedFault](f, 200, "POST", "/dev/faults", fault)
}

// answered makes a call, and fails the test unless it is answered, or not answered, as it should be,
// after the service has carried out this many calls.
func (f *fixture) answered(want bool, served int64, method, token string) {
	f.t.Helper()
	status, answer, err := f.call(method, token)
	if got := err == nil && status == 200; got != want || f.served.Load() != served {
		f.t.Errorf("%d %q %v after %d calls; want an answer: %v, after %d", status, answer, err, f.served.Load(), want,
			served)
	}
}

func TestLoseAnswerAndCut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.plan(`{"kind":"loseAnswer","lxm":"` + sendMessage + `"}`)
	f.answered(true, 1, getConvos, "")
	f.answered(false, 2, sendMessage, "") // carried out, and not answered
	f.answered(true, 3, sendMessage, "")
	f.plan(`{"kind":"cut","times":2}`)
	f.answered(false, 3, sendMessage, "")
	f.answered(false, 3, getConvos, "")
	f.answered(true, 4, getConvos, "")
	struck := []int{}
	for _, one := range ask[Faults](f, 200, "GET", "/dev/faults", "").Faults {
		struck = append(struck, one.Struck)
	}
	if len(struck) != 2 || struck[0] != 1 || struck[1] != 2 {
		t.Errorf("struck %v", struck)
	}
}

// A stream begins, and loses its connection.
func TestLoseAnswerOfAStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.plan(`{"kind":"loseAnswer","ms":50}`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url+"/xrpc/blue.catbird.mls.streamConvoEvents", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := bufio.NewReader(resp.Body).ReadString('\n'); err == nil || text != req.URL.Path || ctx.Err() != nil {
		t.Errorf("%q, %v; want the beginning and then an error", text, err)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, c := range []struct {
		fault, name, after string
		status             int
	}{
		{`{"kind":"status"}`, "ServiceUnavailable", "", 503},
		{`{"kind":"status","status":429,"retryAfter":3}`, "RateLimitExceeded", "3", 429},
		{`{"kind":"status","status":502,"retryAfter":0}`, "BadGateway", "0", 502},
		{`{"kind":"status","status":413}`, "PayloadTooLarge", "", 413},
		{`{"kind":"status","status":401}`, "InvalidToken", "", 401},
		{`{"kind":"status","status":403}`, "NotPermitted", "", 403},
		{`{"kind":"status","status":400}`, "InvalidRequest", "", 400},
	} {
		f.plan(c.fault)
		status, header, answer, err := f.do("POST", "/xrpc/"+sendMessage, "{}")
		if want := `{"error":"` + c.name + `","message":"a planned fault, by POST /dev/faults"}` + "\n"; err != nil ||
			status != c.status ||
			header.Get("Retry-After") != c.after || answer != want {
			t.Errorf("%s: %d %v %s %v", c.fault, status, header, answer, err)
		}
	}
	f.answered(true, 1, sendMessage, "")
}

// A delay is before the request is carried out, and a slow answer comes after it.
func TestDelayAndSlow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, kind := range []string{"delay", "slow"} {
		f.plan(`{"kind":"` + kind + `","ms":200}`)
		begun := time.Now()
		if status, answer, err := f.call(sendMessage, ""); status != 200 || answer != "/xrpc/"+sendMessage || err != nil {
			t.Errorf("%s: %d %s %v", kind, status, answer, err)
		}
		if took := time.Since(begun); took < 190*time.Millisecond {
			t.Errorf("%s: took %v", kind, took)
		}
	}
}

// A fault for one caller spares the others. One without an end meets all requests until it is
// removed.
func TestFaultsOfACaller(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	alice, bob := f.account(), f.account()
	f.plan(`{"kind":"cut","did":"` + alice.DID.String() + `","times":0}`)
	f.answered(true, 1, getConvos, f.token(bob.DID.String(), getConvos))
	for range 3 {
		f.answered(false, 1, getConvos, f.token(alice.DID.String(), getConvos))
	}
	f.answered(true, 2, getConvos, "no token")
	ask[struct{}](f, 200, "DELETE", "/dev/faults", "")
	f.answered(true, 3, getConvos, f.token(alice.DID.String(), getConvos))
}

func TestFaultsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for fault, text := range map[string]string{
		`{}`:                                   "kind",
		`{"kind":"lose"}`:                      "kind",
		`{"kind":"cut","times":-1}`:            "times",
		`{"kind":"cut","ms":1}`:                "ms",
		`{"kind":"cut","status":503}`:          "status",
		`{"kind":"delay","retryAfter":1}`:      "retryAfter",
		`{"kind":"delay","ms":-1}`:             "ms",
		`{"kind":"slow","ms":1000000}`:         "ms",
		`{"kind":"status","status":200}`:       "status",
		`{"kind":"status","retryAfter":-1}`:    "retryAfter",
		`{"kind":"cut","lxm":"sendMessage"}`:   "NSID",
		`{"kind":"cut","did":"alice.test"}`:    "DID",
		`{"kind":"cut","lmx":"a.b.c"}`:         "unknown field",
		`{"kind":"cut","times":"every"}`:       "the body",
		`{"kind":"status","ms":5}`:             "ms",
		`{"kind":"cut","retryAfter":5}`:        "retryAfter",
		`{"kind":"status","status":600}`:       "status",
		`{"kind":"loseAnswer","ms":600001}`:    "ms",
		`{"kind":"status","status":503} extra`: "follows",

		`{"kind":"pdsAway","ms":5}`:                                   "ms",
		`{"kind":"pdsAway","status":200}`:                             "status",
		`{"kind":"pdsAway","retryAfter":5}`:                           "status",
		`{"kind":"pdsAway","lxm":"` + sendMessage + `"}`:              "does not strike",
		`{"kind":"pdsSlow","ms":600001}`:                              "ms",
		`{"kind":"badProof","status":503}`:                            "status",
		`{"kind":"badProof","lxm":"com.atproto.repo.getRecord"}`:      "does not strike",
		`{"kind":"recordMissing","lxm":"com.atproto.repo.putRecord"}`: "does not strike",
	} {
		f.refuses(400, text, "POST", "/dev/faults", fault)
	}
	for range maxFaults {
		f.plan(`{"kind":"cut"}`)
	}
	f.refuses(400, "DELETE /dev/faults", "POST", "/dev/faults", `{"kind":"cut"}`)
}
