package push

import (
	"fmt"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// clock is a clock that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func webhookPlace(did, host string) place {
	return place{pool: poolWebhook, did: syntax.DID(did), host: host}
}

// admits fails the test unless the verdict is want, and returns the place.
func admits(t *testing.T, l *limits, p place, want verdict) place {
	t.Helper()
	p, got, _ := l.admit(p)
	if got != want {
		t.Fatalf("%+v: verdict %d, want %d", p, got, want)
	}
	return p
}

// H6: the calls of one account, of one host, and to hosts that were never called are bounded. A
// host that answers has a place while hosts that hang have taken all that they may have.
func TestPlaces(t *testing.T) {
	t.Parallel()
	l := newLimits((&clock{time.Now()}).now)
	good := admits(t, l, webhookPlace("did:plc:alice", "good.example"), admitted)
	l.report(good, succeeded)
	l.release(good)
	for i := range unproven {
		admits(t, l, webhookPlace(fmt.Sprintf("did:plc:m%d", i/perDID), fmt.Sprintf("m%d.example", i)), admitted)
	}
	admits(t, l, webhookPlace("did:plc:another", "another.example"), busy)
	for range perHost {
		admits(t, l, webhookPlace("did:plc:alice", "good.example"), admitted)
	}
	admits(t, l, webhookPlace("did:plc:bob", "good.example"), busy)
	admits(t, l, place{pool: poolAPNs, did: "did:plc:bob"}, admitted)
	admits(t, l, place{pool: poolAPNs, did: "did:plc:alice"}, busy)
}

// H6: the challenges at one host that has not agreed, and those of one account, are bounded.
func TestChallengeRates(t *testing.T) {
	t.Parallel()
	c := &clock{time.Now()}
	l := newLimits(c.now)
	challenge := func(did, host string, want verdict) {
		t.Helper()
		p := admits(t, l, place{pool: poolChallenge, did: syntax.DID(did), host: host}, want)
		if want == admitted {
			l.release(p)
		}
	}
	for i := range challengesUnknown.Burst {
		challenge(fmt.Sprintf("did:plc:a%d", i), "m.example", admitted)
	}
	challenge("did:plc:another", "m.example", limited)
	c.at = c.at.Add(time.Second)
	challenge("did:plc:another", "m.example", admitted)
	challenge("did:plc:another", "m.example", limited)
	for i := range challengesOfDID.Burst {
		challenge("did:plc:mallory", fmt.Sprintf("m%d.example", i), admitted)
	}
	challenge("did:plc:mallory", "last.example", limited)
}

// H6: a circuit opens after failures in a row, is probed by one call at a time, and stays open
// longer each time the probe fails. It closes when a probe succeeds.
func TestCircuit(t *testing.T) {
	t.Parallel()
	c := &clock{time.Now()}
	l := newLimits(c.now)
	host := webhookPlace("did:plc:alice", "m.example")
	call := func(r result) {
		t.Helper()
		p := admits(t, l, host, admitted)
		l.report(p, r)
		l.release(p)
	}
	for range failuresToOpen - 1 {
		call(failed)
	}
	call(succeeded)
	for range failuresToOpen - 1 {
		call(failed)
	}
	late := admits(t, l, host, admitted)
	call(failed)
	for _, wait := range []time.Duration{firstOpen, 2 * firstOpen, 4 * firstOpen} {
		admits(t, l, host, open)
		l.report(late, failed) // it was running before, and does not count
		c.at = c.at.Add(wait - time.Millisecond)
		admits(t, l, host, open)
		c.at = c.at.Add(time.Millisecond)
		probe := admits(t, l, host, admitted)
		admits(t, l, host, open)
		l.report(probe, failed)
		l.release(probe)
	}
	c.at = c.at.Add(lastOpen)
	gone := admits(t, l, host, admitted) // a probe that makes no call
	l.release(gone)
	call(succeeded)
	admits(t, l, host, admitted)
	admits(t, l, host, admitted)
}

// H6: what outsiders make a node remember is bounded.
func TestLimitsForget(t *testing.T) {
	t.Parallel()
	l := newLimits((&clock{time.Now()}).now)
	for i := range maxRemembered + 100 {
		for _, of := range []pool{poolWebhook, poolChallenge} {
			p := admits(t, l, place{pool: of, did: syntax.DID(fmt.Sprintf("did:plc:m%d", i)),
				host: fmt.Sprintf("m%d.example", i)}, admitted)
			l.report(p, failed)
			l.release(p)
		}
	}
	if l.circuits.Len() != maxRemembered || l.challenges.Len() != maxRemembered ||
		len(l.dids)+len(l.hosts)+l.unproven != 0 {
		t.Errorf("%d circuits, %d budgets, %d accounts, %d hosts", l.circuits.Len(), l.challenges.Len(), len(l.dids),
			len(l.hosts))
	}
}

// Calls count for the registrable domain, so that an account cannot multiply its places by names.
func TestHostOf(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://push.example.com/x":       "example.com",
		"https://A.B.Push.Example.COM./x":  "example.com",
		"https://one.github.io/":           "one.github.io",
		"https://github.io/":               "github.io",
		"https://93.184.216.34/":           "93.184.216.34",
		"https://[2606:4700:0:0::1111]/":   "2606:4700::1111",
		"https://[::ffff:93.184.216.34]/":  "93.184.216.34",
		"http://127.0.0.1:8080/":           "127.0.0.1:8080",
		"http://localhost:8081/":           "localhost:8081",
		"https://intranet/":                "intranet",
		"https://push.example.com:443/x?y": "example.com",
	} {
		if got := hostOf(url); got != want {
			t.Errorf("hostOf(%s) = %s, want %s", url, got, want)
		}
	}
}
