package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v3"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// blocks returns the fenced blocks of the README's tour by their language.
func blocks(t *testing.T) map[string]string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(readme), "\n## Five minutes with curl\n")
	if !ok {
		t.Fatal("README.md has no tour")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	found := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)\n```(\\w+)\n(.*?)\n```\n").FindAllStringSubmatch(section, -1) {
		found[m[1]] += m[2] + "\n"
	}
	return found
}

// startTour runs the tour's directory on a port of its own until the test ends
// and returns its URL.
func startTour(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, append(append([]string{"clientsim"}, args...), "--plc-listen", "127.0.0.1:0"), writer, io.Discard)
		done <- err
		writer.CloseWithError(io.ErrUnexpectedEOF)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(reader).ReadString('\n')
	if err != nil {
		t.Fatalf("no ready line: %v", err)
	}
	_, url, ok := strings.Cut(strings.TrimSpace(line), "clientsim tour on ")
	if !ok {
		t.Fatalf("ready line %q", line)
	}
	return url
}

// startServer runs a mlsd of this source, with the given directory, until the
// test ends and returns its URL.
func startServer(t *testing.T, directory string) string {
	t.Helper()
	home, err := os.MkdirTemp("", "clientsim-tour-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(home, 0o755); err != nil { // its database may run as another user
		t.Fatal(err)
	}
	var server *testbed.Proc
	t.Cleanup(func() {
		if server != nil {
			if err := server.Stop(); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	binary, err := testbed.FindServer(t.Context(), "", home)
	if err != nil {
		t.Fatal(err)
	}
	server = testbed.NewProc(binary, filepath.Join(home, "data"), directory, xrpc.DefaultServiceDID)
	// The simulator usually sets these, and the README does not.
	if err := server.Start(t.Context(), map[string]string{"MLSD_ALLOW_LOOPBACK": "false", "MLSD_FAILPOINTS": "false"}); err != nil {
		t.Fatal(err)
	}
	return server.URL()
}

// The test walks the README's tour command by command. Each "# → text" must come next in the
// output. The flags that start the two processes must be the ones that the test uses.
func TestTourOfTheReadme(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots a server")
	}
	for _, tool := range []string{"bash", "curl", "sed"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the tour needs %s: %v", tool, err)
		}
	}
	script := blocks(t)
	want := "go run ./cmd/clientsim tour\nMLSD_PLC_URL=http://127.0.0.1:2582 go run ./cmd/mlsd\n"
	if diff := cmp.Diff(want, script["sh"]); diff != "" {
		t.Errorf("the README starts them otherwise (-test +README):\n%s", diff)
	}
	directory := startTour(t, "tour")
	server := startServer(t, directory)

	walk := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script["bash"])
	walk.Env = append(os.Environ(), "MLSD="+server, "TOUR="+directory)
	output, err := walk.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	rest := string(output)
	expected := regexp.MustCompile(`(?m)# → (.+)$`).FindAllStringSubmatch(script["bash"], -1)
	if len(expected) < 10 {
		t.Errorf("the tour says what comes only %d times", len(expected))
	}
	for _, m := range expected {
		_, after, ok := strings.Cut(rest, m[1])
		if !ok {
			t.Fatalf("no %q in what is left of the output:\n%s\nwhole output:\n%s", m[1], rest, output)
		}
		rest = after
	}
	if !strings.Contains(string(output), "differing fields: ciphertext") {
		t.Errorf("the conflict does not name the field:\n%s", output)
	}
}

// By default, the tour is served where the README says.
func TestTourDefaults(t *testing.T) {
	t.Parallel()
	defaults := map[string]string{}
	for _, f := range tour(io.Discard).Flags {
		if text, ok := f.(*cli.StringFlag); ok {
			defaults[text.Name] = text.Value
		}
	}
	want := map[string]string{"plc-listen": "127.0.0.1:2582", "service-did": xrpc.DefaultServiceDID}
	if diff := cmp.Diff(want, defaults); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestTourRefuses(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`unexpected argument "extra"`: {"tour", "extra"},
		"not on loopback":             {"tour", "--plc-listen", "0.0.0.0:0"},
		"nonsense":                    {"tour", "--nonsense"},
	} {
		if err := run(t.Context(), append([]string{"clientsim"}, args...), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want an error with %q", args, err, want)
		}
	}
}
