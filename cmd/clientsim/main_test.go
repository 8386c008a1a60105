package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"mlsd/clientsim/scenario"
	"mlsd/clientsim/testbed/testbedtest"
)

func TestMain(m *testing.M) { os.Exit(testbedtest.Run(m)) }

func TestList(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"clientsim", "--list"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(out.String(), "\n"), len(scenario.Scenarios()); got != want {
		t.Errorf("%d lines for %d scenarios:\n%s", got, want, out.String())
	}
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`no scenario "nonsense"`:      {"--scenario", "nonsense"},
		`unexpected argument "extra"`: {"extra"},
		`unexpected argument "more"`:  {"torture", "more"},
		`unexpected argument "much"`:  {"soak", "much"},
		"no/such/samples":             {"soak", "--judge", "--samples", "/no/such/samples"},
		"nonsense":                    {"--nonsense"},
		"seed":                        {"--seed", "many"},
		"/no/such/mlsd":               {"--mlsd", "/no/such/mlsd"},
	} {
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"clientsim"}, args...), &out, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error with %q", args, err, want)
		}
	}
}

// A server that refuses everything breaks promises. The report is written with the seed, and the
// error sets the exit code. Scenarios that need their own server are skipped.
func TestBrokenPromisesAreAnError(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/xrpc/_health" {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = io.WriteString(w, `{"error":"InvalidRequest","message":"no"}`)
	}))
	defer server.Close()
	var out bytes.Buffer
	args := []string{"clientsim", "--server", server.URL, "--seed", "7", "--scenario", "verified-log,killed-after-commit"}
	if err := run(t.Context(), args, &out, io.Discard); !errors.Is(err, errBroken) {
		t.Errorf("run = %v, want errBroken", err)
	}
	for _, want := range []string{"killed-after-commit: skipped: ", "--seed 7", "\n0 lost, 0 duplicated, 2 violated\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, out.String())
		}
	}
}

func TestServerThatIsNotThere(t *testing.T) {
	t.Parallel()
	args := []string{"clientsim", "--server", "http://127.0.0.1:1"}
	if err := run(t.Context(), args, io.Discard, io.Discard); err == nil || errors.Is(err, errBroken) {
		t.Errorf("run = %v, want that there is no server", err)
	}
}
