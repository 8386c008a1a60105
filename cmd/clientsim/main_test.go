package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"mlsd/clientsim/scenario"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/testbed/testbedtest"
	"mlsd/internal/pgtest"
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

// lyingServer names a DID and knows an account of no convo. It refuses every other call.
func lyingServer(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers := map[string]string{
			"/xrpc/_health":                    `{"version":"fake"}`,
			"/.well-known/did.json":            `{"id":"did:web:fake.example","service":[{"type":"AtprotoMlsService"}]}`,
			"/xrpc/blue.catbird.mls.getConvos": `{"conversations":[]}`,
		}
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusBadRequest)
			answer = `{"error":"InvalidRequest","message":"no"}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// A server that refuses everything breaks promises. The report is written with the seed, and the
// error sets the exit code. Scenarios that need their own server are skipped.
func TestBrokenPromisesAreAnError(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	args := []string{
		"clientsim", "--server", lyingServer(t), "--plc-listen", "127.0.0.1:0", "--seed", "7",
		"--scenario", "verified-log,killed-after-commit",
	}
	if err := run(t.Context(), args, &out, io.Discard); !errors.Is(err, errBroken) {
		t.Errorf("run = %v, want errBroken", err)
	}
	for _, want := range []string{"killed-after-commit: skipped: ", "--seed 7", "\n0 lost, 0 duplicated, 1 violated\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, out.String())
		}
	}
}

// A run that plays nothing is an error. G16: it exited with 0.
func TestSkippedRunIsAnError(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	args := []string{
		"clientsim", "--server", lyingServer(t), "--plc-listen", "127.0.0.1:0", "--scenario", "push,killed-after-commit",
	}
	if err := run(t.Context(), args, &out, io.Discard); !errors.Is(err, errSkipped) {
		t.Errorf("run = %v, want errSkipped", err)
	}
	if !strings.Contains(out.String(), "push: skipped: needs a server of its own") {
		t.Errorf("the report does not say why:\n%s", out.String())
	}
}

// A run against a server that it cannot use says why in one sentence, and plays nothing. G16: it
// reported broken promises, or retried in silence.
func TestWrongSetUpIsExplained(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	e, err := testbed.NewEnvironment(t.Context(), "127.0.0.1:0", testbed.Binary{Path: testbedtest.Binary(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	start := func(plcURL string) string {
		server := e.Server("for-" + strings.Trim(plcURL, "htp:/"))
		settings := map[string]string{"MLSD_PLC_URL": plcURL, "MLSD_DATABASE_URL": pgtest.URL(t), "MLSD_SERVICE_DID": ""}
		if err := server.Start(t.Context(), settings); err != nil {
			t.Fatal(err)
		}
		return server.URL()
	}
	another, nowhere := start(e.Dir.URL), start("http://127.0.0.1:1")
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	other := []string{another, "--service-did", "did:web:other.example"}
	for want, args := range map[string][]string{
		"no server answers at http://127.0.0.1:1: ":                   {"http://127.0.0.1:1"},
		"--server localhost:8080 is no URL of a server":               {"localhost:8080"},
		"the server at " + empty.URL + " is not mlsd: ":               {empty.URL},
		"PLC directory than the simulator's: start it with MLSD_PLC_": {another},
		"401 InvalidToken: iss has no usable signing key":             {another + "/"},
		"503 ServiceUnavailable: the token cannot be checked now":     {nowhere},
		"and --service-did is did:web:other.example":                  other,
		"cannot listen (--plc-listen): ":                              {another, "--plc-listen", "192.0.2.1:1"},
	} {
		var out bytes.Buffer
		args := append([]string{"clientsim", "--plc-listen", "127.0.0.1:0", "--server"}, args...)
		err := run(t.Context(), args, &out, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out.Len() > 0 {
			t.Errorf("%v: %v, want one sentence with %q\n%s", args, err, want, out.String())
		}
	}
}
