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
	"mlsd/clientsim/bench/report"
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
		"/no/such/mlsd":          {"send-hot", "--mlsd", "/no/such/mlsd"},
		"NAME=PATH":              {"send-hot", "--mlsd", "a=/x,/y"},
		"comes twice":            {"send-hot", "--mlsd", "a=/x,a=/y"},
		"of on and off":          {"scale", "--standby", "maybe"},
		"nodes are [17]":         {"scale", "--nodes", "17"},
		"measures one server":    {"reconnect-storm", "--mlsd", "a=/x", "--mlsd", "b=/y"},
	} {
		err := run(t.Context(), append([]string{"clientsim", "bench"}, args...), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error with %q", args, err, want)
		}
	}
}

// A short benchmark writes its report in every form, with the command that makes it again.
func TestBenchmark(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots a server")
	}
	jsonFile := filepath.Join(t.TempDir(), "report.json")
	binary := testbedtest.Binary(t)
	var out, progress bytes.Buffer
	err := run(t.Context(), []string{
		"clientsim", "bench", "send-hot", "--mlsd", binary, "--database", pgtest.URL(t), "--turns", "1",
		"--for", "300ms", "--warm-up", "50ms", "--in-flight", "8",
		"--senders", "4", "--seed", "7", "--json", jsonFile,
	}, &out, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	content, err := os.ReadFile(jsonFile)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Command string
		Seed    uint64
		Verdict report.Verdict
	}
	if err := json.Unmarshal(content, &r); err != nil {
		t.Fatal(err)
	}
	want := "clientsim bench send-hot --database URL --for=300ms --in-flight=8 --mlsd=" + binary +
		" --senders=4 --turns=1 --warm-up=50ms --seed=7"
	if r.Command != want || r.Seed != 7 || r.Verdict.Sent == 0 || !r.Verdict.Kept() {
		t.Errorf("%+v, want the command %q", r, want)
	}
	if out.Len() == 0 {
		t.Error("no table was written")
	}
}
