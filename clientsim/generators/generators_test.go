package generators_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/testbed/testbedtest"
	"mlsd/clientsim/xrpc"
	"mlsd/features/push/pushtest"
	"mlsd/internal/pgtest"
)

// typescriptFolder names a folder with the npm packages of typescript/package.json.
const typescriptFolder = "MLSD_TEST_TYPESCRIPT"

// generator makes clients and a program that makes calls with them.
type generator struct {
	name string
	// build generates and compiles. It returns the command that makes the calls.
	build func(t *testing.T, dir string) []string
}

// ofBytes are the methods whose bodies are bytes. The programs send and validate JSON, so they only
// compile these methods.
var ofBytes = []string{mlsapi.NSIDPutAttachmentPart, mlsapi.NSIDGetAttachment}

// ofServices are the methods that succeed only beside another service. The programs only compile
// them.
var ofServices = []string{mlsapi.NSIDDeliverErasure, mlsapi.NSIDDeliverInvitation, mlsapi.NSIDAcceptInvitation,
	mlsapi.NSIDDeclineInvitation}

// M4: clients of all generators compile, and every method answers them with what its lexicon says.
func TestGenerators(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots a server, and compiles")
	}
	all := []generator{{"indigo lexgen", buildIndigo}}
	if os.Getenv(typescriptFolder) == "" {
		t.Logf("NOT CHECKED: @atproto/lex-cli and @atproto/lex. %s does not name a folder with their packages: see make "+
			"generate-clients", typescriptFolder)
	} else {
		all = append(all, generator{"@atproto/lex-cli", buildTypeScript("lexcli")},
			generator{"@atproto/lex", buildTypeScript("lex")})
	}
	to := bootServer(t)
	for i, g := range all {
		dir := t.TempDir()
		command := g.build(t, dir)
		calls := makeCalls(t, to, uint64(i))
		called := play(t, g.name, command, dir, to.Base, calls)
		for _, m := range mlsapi.Methods() {
			if !called[m.NSID] && !slices.Contains(ofBytes, m.NSID) && !slices.Contains(ofServices, m.NSID) {
				t.Errorf("%s: %s was not called with success; makeCalls makes the calls", g.name, m.NSID)
			}
		}
	}
	if !t.Failed() {
		t.Logf("%d methods x %d generators: compiled, called, validated", len(mlsapi.Methods()), len(all))
	}
}

// outcome is what a program prints for one call.
type outcome struct {
	NSID  string `json:"nsid"`
	Error string `json:"error"`
}

// play makes the calls with a program, and returns which methods answered as their lexicons say.
func play(t *testing.T, name string, command []string, dir, base string, calls []call) map[string]bool {
	t.Helper()
	data, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "calls.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	output := run(t, dir, append(command, base, file)...)
	called := map[string]bool{}
	for line := range bytes.Lines(output) {
		var o outcome
		if err := json.Unmarshal(line, &o); err != nil {
			t.Fatalf("%s printed %q: %v", name, line, err)
		}
		if o.Error != "" {
			t.Errorf("%s: %s: %s", name, o.NSID, o.Error)
			continue
		}
		called[o.NSID] = true
	}
	return called
}

// run runs a command in a folder, and returns its standard output.
func run(t *testing.T, dir string, command ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	var errors bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &errors
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", command, err, output, &errors)
	}
	return output
}

// bootServer starts a mlsd for the test.
func bootServer(t *testing.T) testbed.Target {
	t.Helper()
	dir := testbedtest.Directory(t)
	_, vapid := pushtest.Key(t)
	server := testbedtest.Server(t, dir, map[string]string{
		"MLSD_DATABASE_URL": pgtest.URL(t), "MLSD_ATTACHMENTS": t.TempDir(),
		"MLSD_VAPID_KEY_FILE": vapid,
		"MLSD_REPORT_KEY":     "mlsd-report-public-CQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
	})
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	return testbed.Target{Base: server.URL(), Audience: xrpc.DefaultServiceDID, Transport: transport, Dir: dir}
}

// moduleRoot returns the folder of go.mod.
func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(fmt.Errorf("no module here: %w", err))
	}
	return root
}
