package push_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/features/push"
	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/nsid"
	"mlsd/internal/pgtest"
	"mlsd/messages"
)

// A message that was not committed makes no call. A committed one makes one call for each device of
// the other members.
func TestPushAfterCommit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.register(push.Target{DID: bob, DeviceID: "tablet", Kind: push.KindWebhook, Address: b.phone.URL + "/tablet"})
	b.register(push.Target{DID: alice, DeviceID: "phone", Kind: push.KindWebhook, Address: b.phone.URL + "/alice"})
	b.register(push.Target{DID: "did:plc:outsider", DeviceID: "phone", Kind: push.KindWebhook,
		Address: b.phone.URL + "/outsider"})
	failpointtest.Arm(t, b.faults, failpoint.BeforeCommit, nsid.SendMessage, failpoint.Error)
	if _, err := b.log.Append(t.Context(), []messages.Draft{b.draft("lost")}); !errors.Is(err, failpoint.ErrInjected) {
		t.Fatal(err)
	}
	b.run()
	if calls := b.phone.taken(); len(calls) > 0 || len(b.jobs()) > 0 {
		t.Fatalf("of a message that was not committed: %d calls", len(calls))
	}
	b.send("hello")
	if len(b.phone.taken()) > 0 {
		t.Fatal("sent before a worker ran")
	}
	b.run()
	var paths []string
	for _, c := range b.phone.taken() {
		paths = append(paths, c.path)
	}
	if len(paths) != 2 || !strings.Contains(strings.Join(paths, " "), "/hook") ||
		!strings.Contains(strings.Join(paths, " "), "/tablet") {
		t.Fatalf("calls: %q", paths)
	}
	for _, j := range b.jobs() {
		if j.State != "done" || j.Attempts != 1 || j.Reason != "message" || j.DID != bob {
			t.Errorf("%+v", j)
		}
	}
	b.run()
	if calls := b.phone.taken(); len(calls) > 0 {
		t.Fatalf("%d more calls", len(calls))
	}
}

// A refused message makes no call, and neither does a repeated one.
func TestOnlyNewMessagesPush(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := b.draft("hello")
	outsider := b.draft("let me in")
	outsider.Sender = "did:plc:outsider"
	for range 2 {
		if _, err := b.log.Append(t.Context(), []messages.Draft{d, outsider}); err != nil {
			t.Fatal(err)
		}
		b.run()
	}
	if calls := b.phone.taken(); len(calls) != 1 || b.count(`SELECT count(*) FROM push_convos`) != 0 {
		t.Fatalf("%d calls", len(calls))
	}
}

// Without a registered device a message inserts no row.
func TestNoTargetToCall(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`DELETE FROM push_targets`)
	b.send("hello")
	if n := b.count(`SELECT count(*) FROM push_convos`); n != 0 {
		t.Fatalf("%d rows", n)
	}
}

// All messages that come before a device is called make one call.
func TestPushCoalesces(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for range 5 {
		b.send("hello")
	}
	if n := b.count(`SELECT count(*) FROM push_convos`); n != 1 {
		t.Fatalf("%d rows for one convo", n)
	}
	if _, err := b.worker.FanOut(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.send("and more")
	if err := b.deposit(6, func() error { return nil }, "phone"); err != nil {
		t.Fatal(err)
	}
	b.run()
	if calls := b.phone.taken(); len(calls) != 1 || b.only().Reason != "welcome" {
		t.Fatalf("%d calls, %+v", len(calls), b.only())
	}
	b.exec(`DELETE FROM welcomes`) // the convo has no commit for them
}

// A Welcome makes a call of its device, or of all devices of the owner if that device is not
// registered.
func TestWelcomePush(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.register(push.Target{DID: bob, DeviceID: "tablet", Kind: push.KindWebhook, Address: b.phone.URL + "/tablet"})
	for i, tc := range []struct {
		device string
		calls  int
	}{{"tablet", 1}, {"a name that MLS has", 2}} {
		if err := b.deposit(int64(6+i), func() error { return nil }, tc.device); err != nil {
			t.Fatal(err)
		}
		b.run()
		calls := b.phone.taken()
		if len(calls) != tc.calls || !bytes.Contains(calls[0].body, []byte(`"type":"welcome"`)) {
			t.Fatalf("%s: %d calls: %s", tc.device, len(calls), calls[0].body)
		}
	}
	b.exec(`DELETE FROM welcomes`)
}

// A failed call is tried again with the same key, after growing delays. The receiver can ask for
// more time.
func TestPushRetryQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.phone.answers(status(http.StatusServiceUnavailable))
	b.send("hello")
	var key string
	for i, want := range []time.Duration{time.Second, 3 * time.Second, 9 * time.Second, 27 * time.Second,
		81 * time.Second} {
		b.run()
		calls, j := b.phone.taken(), b.only()
		if len(calls) != 1 || j.State != "sending" || j.Attempts != i+1 || j.Error != "status 503" {
			t.Fatalf("attempt %d: %d calls, %+v", i+1, len(calls), j)
		}
		if j.Wait > want || j.Wait < want-time.Second {
			t.Fatalf("attempt %d: the next one is in %v, want %v", i+1, j.Wait, want)
		}
		if k := calls[0].header.Get("Idempotency-Key"); k != "mlsd-"+j.ID.String() || key != "" && k != key {
			t.Fatalf("key %q", k)
		} else {
			key = k
		}
		if i > 0 {
			b.run()
			if early := b.phone.taken(); len(early) > 0 {
				t.Fatal("tried again too early")
			}
		}
		b.due()
	}
	b.phone.answers(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Retry-After", "1800")
		rw.WriteHeader(http.StatusTooManyRequests)
	})
	b.run()
	if j := b.only(); j.Wait < 29*time.Minute {
		t.Fatalf("asked for half an hour: %+v", j)
	}
	b.due()
	b.phone.answers(nil)
	b.run()
	if j := b.only(); j.State != "done" || j.Attempts != 7 {
		t.Fatalf("%+v", j)
	}
}

// No server listens.
func TestPushNetworkFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.phone.Close()
	b.send("hello")
	b.run()
	if j := b.only(); j.State != "sending" || j.Wait <= 0 || !strings.Contains(j.Error, "refused") ||
		strings.Contains(j.Error, "/hook") {
		t.Fatalf("%+v", j)
	}
}

// A receiver that does not answer is called again.
func TestPushNoAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *push.Config) { c.Timeout = 50 * time.Millisecond })
	b.phone.answers(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	b.send("hello")
	b.run()
	if j := b.only(); j.State != "sending" || j.Wait <= 0 || !strings.Contains(j.Error, "deadline") {
		t.Fatalf("%+v", j)
	}
}

// After ten attempts a job is dead. The next message makes a new job.
func TestPushDeadLetter(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.phone.answers(status(http.StatusBadGateway))
	b.send("hello")
	for range 15 {
		b.run()
		b.due()
	}
	j := b.only()
	if calls := b.phone.taken(); len(calls) != 10 || j.State != "dead" || j.Attempts != 10 || j.Error != "status 502" {
		t.Fatalf("%d calls, %+v", len(calls), j)
	}
	if n := b.count(`SELECT count(*) FROM idempotency_keys WHERE nsid = $1 AND key = $2 AND state = 'completed' AND outcome
			= 'failure'`,
		idem.NSIDPush, j.ID.String()); n != 1 {
		t.Fatal("the record does not say that it failed")
	}
	b.phone.answers(nil)
	b.send("again")
	b.run()
	if calls := b.phone.taken(); len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
}

// A status ends the job as done or dead, and 410 deletes the target.
func TestPushRefusals(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]struct {
		state   string
		targets int
	}{
		http.StatusBadRequest: {"dead", 1}, http.StatusNotFound: {"dead", 1}, http.StatusFound: {"dead", 1},
		http.StatusGone: {"done", 0}, http.StatusNoContent: {"done", 1},
	} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.phone.answers(func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("Location", b.phone.URL+"/elsewhere")
				rw.WriteHeader(code)
			})
			b.send("hello")
			b.run()
			calls, targets := b.phone.taken(), b.count(`SELECT count(*) FROM push_targets`)
			if len(calls) != 1 || b.only().State != want.state || targets != want.targets {
				t.Fatalf("%d calls, %d targets, %+v", len(calls), targets, b.only())
			}
		})
	}
}

// A device that was unregistered after the message is not called.
func TestUnregisteredMeanwhile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.send("hello")
	if _, err := b.worker.FanOut(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
		removed, err := push.Unregister(t.Context(), tx, bob, "phone")
		if !removed {
			t.Error("not removed")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b.run()
	if calls := b.phone.taken(); len(calls) > 0 || b.only().State != "done" {
		t.Fatalf("%d calls, %+v", len(calls), b.only())
	}
}

// Neither the call nor the job names the convo or the sender, or carries ciphertext.
func TestPushCarriesNoContent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	apple := newApple(t)
	b.worker = b.newWorker(apple.config(t))
	b.register(push.Target{DID: carol, DeviceID: "iphone", Kind: push.KindAPNs, Address: token, Topic: "example.app",
		Environment: push.Production})
	b.send("the secret text")
	b.run()
	calls := append(b.phone.taken(), apple.taken()...)
	if len(calls) != 2 {
		t.Fatalf("%d calls", len(calls))
	}
	for _, c := range calls {
		var header bytes.Buffer
		if err := c.header.Write(&header); err != nil {
			t.Fatal(err)
		}
		all := c.path + header.String() + string(c.body)
		for _, secret := range []string{b.convo.String(), hex.EncodeToString(b.convo[:]), string(alice), "secret text",
			string(bob), string(carol)} {
			if strings.Contains(all, secret) {
				t.Errorf("%q is in %s", secret, all)
			}
		}
	}
	var fields map[string]any
	if err := json.Unmarshal(calls[0].body, &fields); err != nil || len(fields) != 3 {
		t.Errorf("%v, %v", fields, err)
	}
}

// The signature shows that the call is from this server, and when it was made.
func TestWebhookSignature(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if len(b.target.Secret) != 43 || b.register(b.target).Secret != b.target.Secret {
		t.Fatalf("secret %q", b.target.Secret)
	}
	b.send("hello")
	b.run()
	c := b.phone.taken()[0]
	mac := hmac.New(sha256.New, []byte(b.target.Secret))
	mac.Write([]byte(c.header.Get("X-Mlsd-Timestamp") + "." + string(c.body)))
	if got, want := c.header.Get("X-Mlsd-Signature"), "sha256="+hex.EncodeToString(mac.Sum(nil)); got != want {
		t.Fatalf("signature %s, want %s", got, want)
	}
	var body struct{ Type, DeviceID, JobID string }
	if err := json.Unmarshal(c.body, &body); err != nil || body.Type != "message" || body.DeviceID != "phone" ||
		c.header.Get("Idempotency-Key") != "mlsd-"+body.JobID || uuid.Validate(body.JobID) != nil {
		t.Fatalf("%s, %v", c.body, err)
	}
	other := b.target
	other.Address += "/other"
	if b.register(other).Secret == b.target.Secret {
		t.Fatal("another URL has the same secret")
	}
}

// An address that is not public is not called, under any name. The job is dead.
func TestWebhookDialer(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *push.Config) { c.Webhooks = push.NewWebhooks(false) })
	b.send("hello")
	b.run()
	if calls, j := b.phone.taken(), b.only(); len(calls) > 0 || j.State != "dead" ||
		!strings.Contains(j.Error, "not public") {
		t.Fatalf("%d calls, %+v", len(calls), j)
	}
}

// TestTargets checks which targets can be registered.
func TestTargets(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	strict := push.Policy{APNs: true, Webhooks: true}
	hook := func(url string) push.Target {
		return push.Target{DID: carol, DeviceID: "x", Kind: push.KindWebhook, Address: url}
	}
	apns := push.Target{DID: carol, DeviceID: "x", Kind: push.KindAPNs, Address: token, Topic: "example.app",
		Environment: push.Sandbox}
	noTopic, noToken, wrongEnvironment := apns, apns, apns
	noTopic.Topic, noToken.Address, wrongEnvironment.Environment = "", "../secret", "staging"
	for _, tc := range []struct {
		policy push.Policy
		target push.Target
		ok     bool
	}{
		{strict, hook("https://push.example.com/x?y"), true},
		{strict, hook("https://push.example.com:443/"), true},
		{strict, hook("https://93.184.216.34/"), true},
		{strict, hook("http://push.example.com/"), false},
		{strict, hook("https://push.example.com:8443/"), false},
		{strict, hook("https://me:word@push.example.com/"), false},
		{strict, hook("https://push.example.com/#part"), false},
		{strict, hook("https://127.0.0.1/"), false},
		{strict, hook("https://[::1]/"), false},
		{strict, hook("https://10.0.0.1/"), false},
		{strict, hook("http://127.0.0.1:8080/"), false},
		{strict, hook("/x"), false},
		{strict, hook("ftp://push.example.com/"), false},
		{strict, hook(""), false},
		{strict, hook("https://push.example.com/" + strings.Repeat("x", 2048)), false},
		{policy, hook("http://127.0.0.1:8080/"), true},
		{policy, hook("http://localhost:8080/"), true},
		{policy, hook("http://push.example.com/"), false},
		{push.Policy{APNs: true}, hook("https://push.example.com/"), false},
		{strict, apns, true},
		{push.Policy{Webhooks: true}, apns, false},
		{strict, noTopic, false}, {strict, noToken, false}, {strict, wrongEnvironment, false},
		{strict, push.Target{DID: carol, DeviceID: "x", Kind: "pigeon"}, false},
	} {
		var invalid *push.InvalidError
		if err := tc.policy.Check(tc.target); (err == nil) != tc.ok || err != nil && !errors.As(err, &invalid) {
			t.Errorf("%+v: %v", tc.target, err)
		}
	}
	allowed := 3
	limited := push.Policy{Webhooks: true, Targets: allowed}
	for i := range allowed + 1 {
		err := pgx.BeginFunc(t.Context(), b.db, func(tx pgx.Tx) error {
			target := hook("https://push.example.com/")
			target.DeviceID = string(rune('A' + i))
			_, err := push.Register(t.Context(), tx, limited, target)
			return err
		})
		if (i < allowed) != (err == nil) || err != nil && !errors.Is(err, push.ErrTooManyTargets) {
			t.Fatalf("device %d: %v", i, err)
		}
	}
}

// Jobs are deleted a week after they ended.
func TestSweep(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.send("hello")
	b.run()
	b.send("hello")
	if _, err := b.worker.FanOut(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.exec(`UPDATE push_jobs SET ended_at = ended_at - interval '8 days'`)
	pgtest.Sweep(t, push.Sweep(b.db))
	if j := b.only(); j.State != "pending" {
		t.Fatalf("%+v", j)
	}
}

// Finding S5: the lifetimes that the worker is given are those of a job's record and lease. Another
// worker takes the job a second after the lease.
func TestLifetimes(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *push.Config) {
		c.Operation = idem.Operation{NSID: idem.NSIDPush, Life: 3 * time.Hour, Lease: 20 * time.Second}
	})
	var life, lease, taken time.Duration
	b.phone.answers(func(http.ResponseWriter, *http.Request) {
		err := b.db.QueryRow(context.Background(), `
			SELECT expires_at - started_at, lease_expires_at - started_at, next_attempt_at - started_at
			FROM idempotency_keys k JOIN push_jobs j ON k.key = j.id::text WHERE k.nsid = 'mlsd.push'`).Scan(&life, &lease,
			&taken)
		if err != nil {
			t.Error(err)
		}
	})
	b.send("hello")
	b.run()
	for what, of := range map[string]struct{ got, want time.Duration }{
		"the record's lifetime": {life, 3 * time.Hour}, "the lease": {lease, 20 * time.Second},
		"until another takes over": {taken, 21 * time.Second},
	} {
		if (of.got - of.want).Abs() > time.Second/2 {
			t.Errorf("%s: %s, want %s", what, of.got, of.want)
		}
	}
}

// A member who has not accepted the convo is not called for its messages. Once it has accepted, by
// writing itself, it is called for the next one.
func TestRequestsAreNotPushed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`UPDATE members SET requested_at = now() WHERE did = $1`, bob)
	b.send("buy this")
	b.run()
	if calls, jobs := b.phone.taken(), b.jobs(); len(calls) > 0 || len(jobs) > 0 {
		t.Fatalf("%d calls and %d jobs for a request", len(calls), len(jobs))
	}
	answer := b.draft("who are you?")
	answer.Sender = bob
	if _, err := b.log.Append(t.Context(), []messages.Draft{answer}); err != nil {
		t.Fatal(err)
	}
	if b.count(`SELECT count(*) FROM members WHERE requested_at IS NOT NULL`) != 0 {
		t.Fatal("to write does not accept")
	}
	b.send("a friend")
	b.run()
	if calls := b.phone.taken(); len(calls) != 1 {
		t.Fatalf("%d calls after it was accepted", len(calls))
	}
}
