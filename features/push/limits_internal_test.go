package push

import (
	"fmt"
	"testing"
	"time"

	"mlsd/features/outgoing"
)

// clock is a clock that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// H6: the challenges at one host that has not agreed, and those of one account, are bounded.
func TestChallengeRates(t *testing.T) {
	t.Parallel()
	c := &clock{time.Now()}
	pools := newPools(c.now, webhookTimeout)
	challenge := func(did, host string, want outgoing.Verdict) {
		t.Helper()
		p, got, _ := pools.Acquire(outgoing.Call{Pool: pools.challenges, Caller: did, Host: host})
		if got != want {
			t.Fatalf("%s at %s: verdict %d, want %d", did, host, got, want)
		}
		if got == outgoing.Admitted {
			p.Release()
		}
	}
	for i := range challengesUnknown.Burst {
		challenge(fmt.Sprintf("did:plc:a%d", i), "m.example", outgoing.Admitted)
	}
	challenge("did:plc:another", "m.example", outgoing.Limited)
	c.at = c.at.Add(time.Second)
	challenge("did:plc:another", "m.example", outgoing.Admitted)
	challenge("did:plc:another", "m.example", outgoing.Limited)
	for i := range challengesOfDID.Burst {
		challenge("did:plc:mallory", fmt.Sprintf("m%d.example", i), outgoing.Admitted)
	}
	challenge("did:plc:mallory", "last.example", outgoing.Limited)
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
