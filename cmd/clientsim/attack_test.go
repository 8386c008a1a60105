package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
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
		"comes twice":          {"bodies", "--mlsd", "a=/x,a=/y"},
	} {
		err := run(t.Context(), append([]string{"clientsim", "attack"}, args...), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error with %q", args, err, want)
		}
	}
}

// An attack with small bounds measures a real server. It needs more memory than it may, which is an
// error. The report is still written.
func TestAttack(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	file := filepath.Join(t.TempDir(), "report.json")
	var out bytes.Buffer
	err := run(t.Context(), []string{
		"clientsim", "attack", "groupinfo", "--leaves", "48", "--memory", "1", "--mlsd", testbedtest.Binary(t),
		"--calm", "500ms", "--for", "2s", "--after", "0s", "--json", file,
	}, &out, io.Discard)
	if !errors.Is(err, errNotWithstood) {
		t.Errorf("run = %v, want errNotWithstood\n%s", err, out.String())
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report attack.Report
	if err := json.Unmarshal(content, &report); err != nil || len(report.Results) != 1 || report.Withstood() {
		t.Fatalf("report %s: %v", content, err)
	}
	const before = 0 // the first phase
	for _, r := range report.Results {
		if r.Attempts == 0 || len(r.Answers) == 0 || r.Memory == 0 {
			t.Errorf("%s: %d attempts, answers %v, %d bytes of memory", r.Attack, r.Attempts, r.Answers, r.Memory)
		}
		for _, name := range []string{"send", "getConvos", "newcomer", "WebSocket", "event stream", "push"} {
			if f := r.Honest[name][before]; f.Count == 0 || f.Success != 1 {
				t.Errorf("%s: %s before the attack: %+v\n%s", r.Attack, name, f, out.String())
			}
		}
	}
}
