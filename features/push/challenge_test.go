package push_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"mlsd/features/push"
	"mlsd/internal/pgtest"
)

// hook registers a new webhook for a device of bob's.
func (b *bench) hook(device, url string) push.Target {
	b.t.Helper()
	return b.registerNew(push.Target{DID: bob, DeviceID: device, Kind: push.KindWebhook, Address: url})
}

func (b *bench) state(device string) (state string) {
	b.t.Helper()
	if err := b.db.QueryRow(b.t.Context(), `SELECT state FROM push_targets WHERE did = $1 AND device_id = $2`, bob,
		device).Scan(&state); err != nil {
		b.t.Fatal(err)
	}
	return state
}

// passChallenges lets time pass until every challenge is due.
func (b *bench) passChallenges(d time.Duration) {
	b.t.Helper()
	b.passed.Add(int64(d))
	pgtest.Age(b.t, b.db, "push_targets", d)
}

// challengeIn returns the challenge in a call, or "".
func challengeIn(t *testing.T, c received) string {
	t.Helper()
	var call struct{ Type, DeviceID, Challenge string }
	if err := json.Unmarshal(c.body, &call); err != nil {
		t.Fatal(err)
	}
	if (call.Type == "challenge") != (call.Challenge != "") {
		t.Fatalf("%s", c.body)
	}
	return call.Challenge
}

// echo answers a challenge with what change makes of it.
func echo(change func(body []byte, challenge string) string) http.HandlerFunc {
	return func(rw http.ResponseWriter, req *http.Request) {
		body, ok := req.Context().Value(bodyKey{}).([]byte)
		var call struct{ Challenge string }
		if !ok || json.Unmarshal(body, &call) != nil {
			panic("no body")
		}
		if _, err := io.WriteString(rw, change(body, call.Challenge)); err != nil {
			panic(err)
		}
	}
}

func agree(_ []byte, challenge string) string { return challenge + "\n" }

// H6: a webhook is called only after it has answered its challenge. It is called then for what came
// meanwhile.
func TestChallenge(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`DELETE FROM push_targets`)
	if target := b.hook("phone", b.phone.URL+"/new"); target.State != push.Pending || len(b.phone.taken()) > 0 {
		t.Fatalf("registered as %s", target.State)
	}
	b.phone.answers(status(http.StatusServiceUnavailable))
	b.send("hello")
	b.run()
	calls := b.phone.taken()
	if len(calls) != 1 || challengeIn(t, calls[0]) == "" || calls[0].header.Get("X-Mlsd-Signature") == "" {
		t.Fatalf("%d calls", len(calls))
	}
	if n := len(b.jobs()); n != 0 || b.state("phone") != "pending" {
		t.Fatalf("%d jobs, %s", n, b.state("phone"))
	}
	b.phone.answers(echo(agree))
	b.run()
	b.called(0, "before the delay")
	b.passChallenges(2 * time.Second)
	b.run() // can make both calls
	b.run()
	calls = b.phone.taken()
	if len(calls) != 2 || challengeIn(t, calls[0]) == "" || b.state("phone") != "active" {
		t.Fatalf("%d calls, %s", len(calls), b.state("phone"))
	}
	if challengeIn(t, calls[1]) != "" || b.only().State != "done" {
		t.Fatal("there is no call for the message that came before")
	}
	if target := b.hook("phone", b.phone.URL+"/new"); target.State != push.Active {
		t.Fatalf("the same again is %s", target.State)
	}
	if target := b.hook("phone", b.phone.URL+"/other"); target.State != push.Pending {
		t.Fatalf("another URL is %s", target.State)
	}
}

// H6: a server that answers everything, repeats what it was sent, or redirects has not agreed.
func TestWrongAnswers(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"nothing":  status(http.StatusOK),
		"the body": echo(func(body []byte, _ string) string { return string(body) }),
		"more":     echo(func(_ []byte, challenge string) string { return "you sent " + challenge }),
		"another":  echo(func(_ []byte, challenge string) string { return strings.ToLower(challenge) }),
		"with an error": func(rw http.ResponseWriter,
			r *http.Request) {
			rw.WriteHeader(http.StatusNotFound)
			echo(agree)(rw, r)
		},
		"with a redirect": func(rw http.ResponseWriter,
			r *http.Request) {
			rw.WriteHeader(http.StatusFound)
			echo(agree)(rw, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.hook("phone", b.phone.URL+"/new")
			b.phone.answers(answer)
			for range 10 {
				b.run()
				b.passChallenges(time.Hour)
			}
			if calls := b.phone.taken(); len(calls) != 8 || b.state("phone") != "failed" {
				t.Fatalf("%d challenges, %s", len(calls), b.state("phone"))
			}
			b.send("hello")
			b.run()
			b.called(0, "failed")
			b.phone.answers(echo(agree))
			if target := b.hook("phone", b.phone.URL+"/new"); target.State != push.Pending {
				t.Fatalf("registered again it is %s", target.State)
			}
			b.run()
			if b.state("phone") != "active" {
				t.Fatalf("registered again and agreed: %s", b.state("phone"))
			}
		})
	}
}

// A challenge whose target was replaced meanwhile makes nothing active.
func TestChallengeOfAnOlderURL(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.hook("phone", b.phone.URL+"/old")
	var once atomic.Bool
	b.phone.answers(func(rw http.ResponseWriter, r *http.Request) {
		if once.CompareAndSwap(false, true) {
			b.hook("phone", b.phone.URL+"/new")
		}
		echo(agree)(rw, r)
	})
	b.run()
	if b.state("phone") != "pending" {
		t.Fatalf("%s", b.state("phone"))
	}
	b.run()
	if b.state("phone") != "active" {
		t.Fatalf("%s", b.state("phone"))
	}
}

// H6: anybody can register URLs at anybody's host. A host that does not agree gets a bounded number
// of challenges, from one account and from many.
func TestChallengesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`DELETE FROM push_targets`)
	b.exec(`
		INSERT INTO push_targets (did, device_id, kind, address, secret, created_at, registration, state, challenge_at)
		SELECT 'did:plc:m' || d, t, 'webhook', $1 || '/' || d || '/' || t, d || '-' || t, now(), gen_random_uuid(), 'pending',
			now()
		FROM generate_series(1, 10) d, generate_series(1, 10) t`, b.phone.URL)
	b.phone.answers(status(http.StatusNotFound))
	for range 30 {
		b.run()
	}
	const burst = 10
	if n := len(b.phone.taken()); n < 4 || n > burst+5 {
		t.Errorf("%d challenges of a host that does not agree, want at most %d and one per second", n, burst)
	}
}
