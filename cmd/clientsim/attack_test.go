package main

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"mlsd/clientsim/attack"
	"mlsd/clientsim/testbed/testbedtest"
)

func TestListAttacks(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"clientsim", "attack", "--list"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(out.String(), "\n"), len(attack.Attacks())+2; got != want {
		t.Errorf("%d lines, want %d:\n%s", got, want, out.String())
	}
}

func TestAttackRefuses(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"no attack is named":   {},
		`no attack "nonsense"`: {"nonsense"},
		"must be positive":     {"bodies", "--for", "0s"},
		"/no/such/mlsd":        {"bodies", "--mlsd", "/no/such/mlsd"},
	} {
		err := run(t.Context(), append([]string{"clientsim", "attack"}, args...), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error with %q", args, err, want)
		}
	}
}

// An attack with small bounds measures a real server. It needs more memory than it may, which is an
// error.
func TestAttack(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	var out bytes.Buffer
	err := run(t.Context(), []string{
		"clientsim", "attack", "groupinfo", "--leaves", "48", "--memory", "1", "--mlsd", testbedtest.Binary(t),
		"--calm", "500ms", "--for", "2s", "--after", "0s",
	}, &out, io.Discard)
	if !errors.Is(err, errNotWithstood) {
		t.Errorf("run = %v, want errNotWithstood\n%s", err, out.String())
	}
	for _, want := range []string{
		`send +\d+ +100%`, `getConvos +\d+ +100%`, `newcomer +\d+ +100%`, `WebSocket +\d+ +100%`,
		`event stream +\d+ +100%`, `push +\d+ +100%`, `answers to the attacker, by status \(0: none\): .*\d+ × \d+`,
		`FAILED memory: \d\d+ MiB, at most 1 MiB`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in the report:\n%s", want, out.String())
		}
	}
}
