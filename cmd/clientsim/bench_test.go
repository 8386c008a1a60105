package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mlsd/clientsim/bench"
	"mlsd/clientsim/testbed/testbedtest"
	"mlsd/internal/pgtest"
)

func TestListBenchmarks(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"clientsim", "bench", "--list"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(out.String(), "\n"), len(bench.Scenarios()); got != want {
		t.Errorf("%d lines for %d scenarios:\n%s", got, want, out.String())
	}
}

func TestBenchmarkRefuses(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"one scenario":           {},
		`no scenario "nonsense"`: {"nonsense"},
		"takes one":              {"send-hot", "send-spread"},
		`auth is "x"`:            {"send-hot", "--auth", "x"},
		"nonsense":               {"send-hot", "--nonsense"},
		"leave out --mlsd":       {"send-hot", "--against", "/x", "--mlsd", "/y"},
		"/no/such/mlsd":          {"send-hot", "--mlsd", "/no/such/mlsd"},
		"NAME=PATH":              {"send-hot", "--mlsd", "a=/x,/y"},
		"comes twice":            {"send-hot", "--mlsd", "a=/x,a=/y"},
		"of on and off":          {"scale", "--standby", "maybe"},
		"most nodes is 17":       {"scale", "--nodes", "2,17"},
		"measures one server":    {"reconnect-storm", "--mlsd", "a=/x", "--mlsd", "b=/y"},
	} {
		err := run(t.Context(), append([]string{"clientsim", "bench"}, args...), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error with %q", args, err, want)
		}
	}
}

// A race builds this source and another one, which here is the same, and compares them.
func TestRace(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds and boots servers")
	}
	var out, progress bytes.Buffer
	err := run(t.Context(), []string{
		"clientsim", "bench", "send-hot", "--against", "../..", "--database", pgtest.URL(t), "--turns", "1", "--for", "300ms",
		"--warm-up", "50ms", "--in-flight", "8", "--senders", "4", "--times", "1000",
	}, &out, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	if want := "auth=service, now ÷ before: server "; !strings.Contains(out.String(), want) {
		t.Errorf("%q is not in\n%s", want, out.String())
	}
}

// A short benchmark prints a table, or lines for benchstat, and writes its report as JSON.
func TestBenchmark(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots a server")
	}
	for _, test := range []struct {
		flags []string
		want  string
	}{
		{nil, "\nEvery promise kept: 0 lost, 0 doubled, 0 gaps, 0 violated\n"},
		{[]string{"--lines"}, "\nBenchmarkSendHot/auth=service-"},
	} {
		jsonFile := filepath.Join(t.TempDir(), "report.json")
		var out, progress bytes.Buffer
		err := run(t.Context(), append([]string{
			"clientsim", "bench", "send-hot", "--mlsd", testbedtest.Binary(t), "--database", pgtest.URL(t), "--turns", "1",
			"--for", "300ms", "--warm-up", "50ms", "--in-flight", "8", "--senders", "4", "--seed", "7", "--json", jsonFile,
		}, test.flags...), &out, &progress)
		if err != nil {
			t.Fatalf("%v\n%s", err, progress.String())
		}
		content, err := os.ReadFile(jsonFile)
		if err != nil {
			t.Fatal(err)
		}
		var r struct {
			Seed    uint64
			Load    bench.Load
			Verdict bench.Verdict
		}
		if err := json.Unmarshal(content, &r); err != nil {
			t.Fatal(err)
		}
		if r.Seed != 7 || r.Load.InFlight != 8 || r.Load.Members != 64 || r.Verdict.Sent == 0 || !r.Verdict.Kept() {
			t.Errorf("%+v", r)
		}
		if !strings.Contains(out.String(), test.want) {
			t.Errorf("%q is not in\n%s", test.want, out.String())
		}
	}
}
