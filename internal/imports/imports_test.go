// Package imports_test checks rules of the design: which folder may import which, and which package
// uses which table of the database.
package imports_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "mlsd"

// forTests are the packages that only tests and generators may import.
func forTests() []string {
	return []string{
		"clientsim/testbed/testbedtest", "clientsim/xrpc/xrpctest", "features/attachments/storetest",
		"features/push/pushtest", "internal/await",
		"internal/failpoint/failpointtest", "internal/guide", "internal/limit/limittest", "internal/moduletest",
		"internal/imports", "internal/lexgen", "internal/lexgen/examples", "internal/mlstest", "internal/mutants",
		"internal/pgtest", "internal/promtest", "internal/serviceauth/authtest", "internal/standby/standbytest",
		"internal/testdir",
	}
}

// narrow returns the packages that may import only a few of ours.
func narrow() []narrowRule {
	return []narrowRule{
		// The simulator is a black box: it talks HTTP.
		{below: "clientsim", only: []string{"api/lexcodec", "api/mlsapi", "clientsim", "features/transparency/verifier",
			"internal/errs", "internal/terminal", "internal/testdir", "mls"}},
		// The server and its clients compute leaves and heads with the same code. A client needs no more.
		{below: "features/transparency/verifier"},
		// A verdict about an MLS object needs nothing but the object.
		{below: "mls"},
	}
}

// narrowRule says of which packages those below a path may import any.
type narrowRule struct {
	below string
	only  []string
}

// foreign returns the rules for packages of others that only some of ours may import.
func foreign() []foreignRule {
	return []foreignRule{
		// The server's verdict must not rest on the code that made the object.
		{prefix: "github.com/thomas-vilte/mls-go", only: []string{"clientsim/mlsclient"}, tests: true},
		{prefix: "github.com/labstack/echo", only: []string{"api", "node"}},
		{prefix: "net/http", only: []string{
			"api", "api/errorlist", "cmd/mlsd", "cmd/mlsd-dev", "node", "operator", "operator/console",
			"cmd/mlsd-dev/devserver", "clientsim/attack", "clientsim/bench", "clientsim/client", "clientsim/history",
			"clientsim/scenario",
			"clientsim/soak", "clientsim/testbed", "clientsim/xrpc", "clientsim/xrpc/xrpctest", "internal/localpg",
			"internal/serviceauth", "internal/tracing", "features/outgoing", "features/push", "features/network",
		}},
		{prefix: "go.opentelemetry.io", only: []string{"internal/tracing"}},
		{prefix: "github.com/minio/minio-go", only: []string{"features/attachments/s3store"}},
		// Repositories bring two dozen modules.
		{prefix: "github.com/bluesky-social/indigo/atproto/repo", only: []string{"cmd/mlsd-dev/repository"}},
		{prefix: "github.com/ipld", only: []string{"cmd/mlsd-dev/repository"}},
		{prefix: "github.com/sideshow/apns2", only: []string{"features/push"}},
		// Only the tests of the alert rules and of the dashboard use it. Its other packages bring
		// hundreds of modules.
		{prefix: "github.com/prometheus/prometheus", only: []string{"internal/promtest"}},
		{prefix: "testing", only: []string{
			"features/attachments/storetest", "features/push/pushtest", "internal/pgtest", "internal/mlstest",
			"internal/serviceauth/authtest",
			"internal/standby/standbytest", "internal/await", "internal/failpoint/failpointtest",
			"internal/limit/limittest", "internal/moduletest",
			"internal/testdir", "internal/mutants",
			"clientsim/xrpc/xrpctest", "clientsim/testbed/testbedtest",
		}},
	}
}

// foreignRule says who may import the packages below a path.
type foreignRule struct {
	prefix string
	only   []string
	tests  bool // the rule holds for test files too
}

// pkg is what go list prints of a package.
type pkg struct {
	ImportPath                         string
	Doc                                string // the first sentence of its comment
	Imports, TestImports, XTestImports []string
}

func (p pkg) name() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

func TestImports(t *testing.T) {
	t.Parallel()
	pkgs := list(t, "./...")
	if len(pkgs) < 15 {
		t.Fatalf("go list knows only %d packages", len(pkgs))
	}
	for _, v := range violations(pkgs) {
		t.Error(v)
	}
}

// The server's program links no MLS client, no simulator and no test support, directly or not.
func TestServerIsBuiltWithout(t *testing.T) {
	t.Parallel()
	unwanted := append(forTests(), "github.com/thomas-vilte/mls-go", "clientsim", "cmd/mlsd-dev/devserver")
	deps := list(t, "-deps", "./cmd/mlsd")
	if !slices.ContainsFunc(deps, func(p pkg) bool { return p.ImportPath == "github.com/jackc/pgx/v5" }) {
		t.Fatal("go list -deps does not list what it should")
	}
	for _, p := range deps {
		for _, u := range unwanted {
			if below(p.name(), u) {
				t.Errorf("the server is built with %s", p.ImportPath)
			}
		}
	}
}

// violations returns the imports that break a rule.
func violations(pkgs []pkg) (found []string) {
	helpers := forTests()
	for _, p := range pkgs {
		for _, path := range p.Imports {
			name, ours := strings.CutPrefix(path, module+"/")
			if !ours {
				continue
			}
			if slices.Contains(helpers, name) && !slices.Contains(helpers, p.name()) {
				found = append(found, fmt.Sprintf("%s imports %s, which only tests may import", p.name(), name))
			}
			for _, rule := range narrow() {
				within := func(folder string) bool { return below(name, folder) }
				if below(p.name(), rule.below) && !slices.ContainsFunc(rule.only, within) {
					found = append(found, fmt.Sprintf("%s imports %s; it may import only %q", p.name(), name, rule.only))
				}
			}
		}
		for _, rule := range foreign() {
			if slices.Contains(rule.only, p.name()) {
				continue
			}
			paths := p.Imports
			if rule.tests {
				paths = slices.Concat(p.Imports, p.TestImports, p.XTestImports)
			}
			for _, path := range paths {
				if below(path, rule.prefix) {
					found = append(found, fmt.Sprintf("%s imports %s; only %q may", p.name(), path, rule.only))
				}
			}
		}
	}
	return found
}

// below reports whether a path is prefix or lies under it.
func below(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// The rules refuse what the design refuses.
func TestViolations(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, pkg string
		imports   []string
		want      string // in the only complaint; "" if there is none
	}{
		{"allowed", "convos", []string{"fmt", "mlsd/messages", "mlsd/mls"}, ""},
		{"HTTP in the domain", "idem", []string{"net/http/httptrace"}, "idem imports net/http/httptrace"},
		{"echo in the domain", "convos", []string{"github.com/labstack/echo/v4"}, "convos imports github.com/labstack"},
		{"the simulator looks inside", "clientsim/testbed", []string{"mlsd/messages"}, "clientsim/testbed imports messages"},
		{"test support outside of tests", "cmd/mlsd", []string{"mlsd/internal/pgtest"}, "only tests may import"},
		{"something that only looks like it", "mls", []string{"github.com/thomas-vilte/mls-gone"}, ""},
		{"an MLS client in the server", "mls", []string{"github.com/thomas-vilte/mls-go/group"}, "imports github.com/thomas"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := violations([]pkg{{ImportPath: module + "/" + tc.pkg, Imports: tc.imports}})
			if tc.want == "" && len(got) == 0 {
				return
			}
			if len(got) != 1 || tc.want == "" || !strings.Contains(got[0], tc.want) {
				t.Errorf("got %q, want one complaint with %q", got, tc.want)
			}
		})
	}
}

// list runs go list in the module's root.
func list(t *testing.T, args ...string) []pkg {
	t.Helper()
	const fields = "-json=ImportPath,Doc,Imports,TestImports,XTestImports"
	cmd := exec.Command("go", append([]string{"list", fields}, args...)...)
	cmd.Dir = "../.."
	lookAtSources(t, cmd.Dir)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var pkgs []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return pkgs
		case err != nil:
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// lookAtSources opens every directory of the module. go test caches a result until a file changes
// that the test has opened, and it does not see what go list opens.
func lookAtSources(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
