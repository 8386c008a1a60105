// Package imports_test checks two rules of the design: which package may import which, and which
// package uses which table of the database.
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

	"github.com/google/go-cmp/cmp"
)

const module = "mlsd"

// everybodys is a package that each of ours may import: it is as small as one of the standard
// library.
const everybodys = "internal/errs"

// allowed says for every package of ours, except those that only tests use, which of our packages
// it may import. A new entry changes the design: change the documentation of both packages with it.
func allowed() map[string][]string {
	domain := func(more ...string) []string {
		return append(more, "mls", "internal/nsid", "internal/pgpool", "internal/worker")
	}
	return map[string][]string{
		"cmd/mlsd": {
			"events", "idem", "internal/localpg", "internal/node", "internal/pgpool", "internal/quota",
			"internal/redact", "internal/sessions", "internal/transparency/verifier", "keypackages",
			"migrations", "operator", "people/reports", "welcome",
		},
		"cmd/mlsd-dev": {"events", "clientsim/steps", "cmd/mlsd-dev/devserver", "internal/localpg", "internal/node",
			"internal/pgpool", "internal/terminal", "migrations", "operator"},
		"internal/node": {
			"api", "api/mlsapi", "convos", "events", "events/signals", "idem", "internal/attachments",
			"internal/attachments/filestore", "internal/attachments/s3store", "internal/dbmetrics",
			"internal/duration", "internal/failpoint", "internal/invariants", "internal/limit", "internal/localpg",
			"internal/network", "internal/nsid", "internal/pgpool", "internal/push", "internal/quota", "internal/ratelog",
			"internal/redact", "internal/relay", "internal/requests", "internal/serviceauth",
			"internal/sessions", "internal/standby", "internal/terminal", "internal/tracing", "internal/transparency",
			"internal/worker", "keypackages", "messages", "migrations", "operator",
			"operator/console", "people/accounts", "people/consent", "people/disputes", "people/erasure",
			"people/reports", "welcome",
		},
		"cmd/mlsd-dev/devserver": {"api/lexcodec", "api/mlsapi", "clientsim/client", "clientsim/mlsclient", "clientsim/steps",
			"clientsim/xrpc"},
		"cmd/clientsim": {
			"clientsim/attack", "clientsim/bench", "clientsim/bench/report", "clientsim/scenario", "clientsim/testbed",
			"clientsim/soak", "clientsim/steps", "clientsim/torture", "clientsim/xrpc", "internal/terminal",
		},
		// The simulator is a black box: it talks HTTP. Each of its packages imports only packages
		// above it in this list.
		"clientsim":           {},
		"clientsim/steps":     {},
		"clientsim/mlsclient": {"clientsim/steps"},
		"clientsim/xrpc":      {"api/lexcodec", "api/mlsapi", "clientsim/mlsclient", "clientsim/steps"},
		"clientsim/history":   {"api/lexcodec", "api/mlsapi", "clientsim/mlsclient", "clientsim/xrpc"},
		"clientsim/client": {"api/lexcodec", "api/mlsapi", "clientsim/history", "clientsim/mlsclient", "clientsim/xrpc",
			"internal/transparency/verifier", "clientsim/steps"},
		"clientsim/testbed": {"api/lexcodec", "api/mlsapi", "clientsim/client", "clientsim/history", "clientsim/mlsclient",
			"clientsim/xrpc", "clientsim/steps"},
		"clientsim/scenario": {
			"api/lexcodec", "api/mlsapi", "clientsim/client", "clientsim/history", "clientsim/load", "clientsim/mlsclient",
			"clientsim/testbed",
			"clientsim/traffic", "clientsim/xrpc", "internal/terminal", "clientsim/steps",
		},
		"clientsim/attack": {"api/mlsapi", "clientsim/client", "clientsim/load", "clientsim/mlsclient", "clientsim/testbed",
			"clientsim/xrpc", "mls", "clientsim/steps"},
		"clientsim/bench": {
			"api/mlsapi", "clientsim/bench/report", "clientsim/load", "clientsim/mlsclient", "clientsim/testbed",
			"clientsim/xrpc", "clientsim/steps",
		},
		"clientsim/bench/report": {"clientsim/load"},
		"clientsim/load":         {},
		"clientsim/traffic": {
			"api/mlsapi", "clientsim/client", "clientsim/history", "clientsim/load", "clientsim/mlsclient", "clientsim/testbed",
			"clientsim/xrpc", "clientsim/steps",
		},
		"clientsim/torture": {
			"clientsim/client", "clientsim/history", "clientsim/testbed", "clientsim/torture/pgwire", "clientsim/traffic",
			"clientsim/xrpc", "clientsim/steps",
		},
		"clientsim/torture/pgwire": {},
		"clientsim/soak": {"api/mlsapi", "clientsim/bench/report", "clientsim/load", "clientsim/scenario",
			"clientsim/testbed", "clientsim/xrpc", "clientsim/steps"},
		"clientsim/agents/mlsgo": {"clientsim/mlsclient", "clientsim/steps"},
		"clientsim/generators":   {}, // its tests import the packages above
		"deploy/sbom":            {},
		"operator": domain("people/accounts", "people/archive", "convos", "people/disputes", "people/erasure",
			"internal/duration", "messages", "people/reports", "internal/transparency", "internal/sessions",
			"internal/tombstone", "events", "keypackages", "internal/push", "welcome", "idem", "internal/quota",
			"internal/limit", "internal/network", "internal/redact"),
		"operator/console": {"operator", "events", "idem", "internal/invariants", "internal/nsid", "internal/quota",
			"internal/redact", "internal/worker", "internal/push", "people/accounts", "people/reports"},
		"operator/console/browser": {"internal/localpg"}, // for operator/console/check.sh
		"people/accounts":          {"internal/pgpool", "internal/sessions", "internal/tombstone", "internal/worker"},
		"people/archive":           {"internal/redact"},
		"people/erasure": {
			"people/accounts", "internal/attachments", "people/consent", "convos", "events", "idem", "internal/failpoint",
			"internal/pgpool", "internal/quota", "internal/requests", "internal/serviceauth",
			"internal/sessions", "internal/tombstone", "internal/worker", "keypackages", "messages", "internal/push",
			"people/reports", "internal/network", "internal/transparency", "welcome",
		},
		"internal/tombstone": {},
		// The server and its clients compute leaves and heads with the same code. A client needs no more.
		"internal/transparency/verifier": {},
		"internal/transparency": {"internal/pgpool", "internal/ratelog", "internal/tombstone",
			"internal/transparency/verifier"},
		"internal/relay": {"people/accounts", "internal/metric", "internal/serviceauth", "internal/pgpool",
			"internal/worker"},
		"api": domain("people/accounts", "api/errorlist", "api/lexcodec", "api/mlsapi", "people/archive", "people/consent",
			"convos", "people/erasure", "messages", "welcome", "keypackages", "idem", "events", "events/outbox",
			"events/signals",
			"internal/push", "people/reports", "internal/batch", "internal/limit", "internal/metric", "internal/quota",
			"internal/ratelog",
			"internal/requests", "internal/serviceauth", "internal/sessions", "internal/standby", "internal/tracing",
			"people/disputes", "internal/network", "internal/transparency", "internal/transparency/verifier",
			"internal/attachments"),
		"people/reports": {"internal/pgpool", "internal/quota", "internal/tombstone", "internal/worker",
			"messages"},
		"people/consent": {"internal/pgpool", "internal/tombstone"},
		"convos": domain("internal/tombstone", "internal/nsid", "people/consent", "people/disputes",
			"messages", "welcome", "keypackages", "idem", "events/outbox", "internal/failpoint", "internal/batch",
			"internal/quota", "internal/network", "internal/transparency", "internal/attachments"),
		"people/disputes": {"internal/pgpool", "internal/tombstone", "internal/worker", "messages",
			"events/outbox"},
		"messages": domain("internal/batch", "internal/tombstone", "internal/nsid", "idem",
			"events/outbox", "internal/push", "internal/failpoint", "internal/quota", "internal/serviceauth",
			"internal/tracing"),
		"welcome": domain("internal/tombstone", "internal/nsid", "messages", "idem", "events/outbox",
			"internal/push", "internal/batch", "internal/failpoint", "internal/ratelog"),
		"keypackages": domain("internal/tombstone", "people/consent", "idem", "events/outbox"),
		"events": domain("internal/tombstone", "messages", "migrations", "events/outbox", "events/signals",
			"internal/push", "internal/failpoint", "internal/standby", "internal/tracing"),
		"events/signals": {"internal/limit", "internal/pgpool", "internal/worker"},
		"events/outbox":  {},
		"internal/network": domain("internal/tombstone", "people/consent", "welcome", "keypackages", "idem", "events/outbox",
			"internal/failpoint", "internal/push", "internal/quota", "internal/serviceauth", "internal/ssrf",
			"internal/transparency"),
		"internal/push": {"internal/tombstone", "idem", "internal/failpoint", "internal/limit",
			"internal/nsid", "internal/pgpool", "internal/ssrf", "internal/tracing", "internal/worker"},
		"idem": {"internal/duration", "internal/tombstone", "internal/failpoint", "internal/pgpool",
			"internal/worker"},
		"mls":                 {},
		"migrations":          {"internal/failpoint", "internal/pgpool", "internal/worker"},
		"api/mlsapi":          {"api/lexcodec", "internal/nsid"},
		"api/errorlist":       {},
		"api/lexcodec":        {},
		"lexicons":            {},
		"internal/duration":   {},
		"internal/errs":       {},
		"internal/failpoint":  {},
		"internal/requests":   {"internal/pgpool", "internal/tombstone", "internal/worker"},
		"internal/quota":      {"internal/pgpool", "internal/tombstone", "internal/worker"},
		"internal/dbmetrics":  {},
		"internal/ssrf":       {},
		"internal/worker":     {},
		"internal/terminal":   {},
		"internal/invariants": {"mls", "internal/nsid"},
		"internal/lexgen":     {"api/errorlist", "lexicons"},
		"internal/localpg":    {"internal/worker"},
		"internal/nsid":       {},
		"internal/redact":     {"internal/nsid"},
		"internal/pgpool":     {"internal/tracing", "internal/worker"},
		"internal/batch":      {"internal/tracing"},
		"internal/tracing":    {},
		"internal/standby":    {"internal/metric", "internal/pgpool", "internal/ratelog", "internal/worker"},
		"internal/limit":      {},
		"internal/metric":     {},
		"internal/ratelog":    {},
		"internal/k256":       {},
		"internal/sessions":   {"internal/pgpool", "internal/serviceauth", "internal/tombstone", "internal/worker"},
		"internal/serviceauth": {"internal/tombstone", "internal/batch", "internal/k256", "internal/limit",
			"internal/pgpool", "internal/ratelog", "internal/ssrf", "internal/tracing", "internal/worker"},
		"internal/attachments":           domain("internal/tombstone", "messages", "idem", "internal/failpoint"),
		"internal/attachments/filestore": {"internal/attachments"},
		"internal/attachments/s3store":   {"internal/attachments"},
	}
}

// forTests are the packages that only tests may import, and what those packages may import.
func forTests() map[string][]string {
	return map[string][]string{
		"internal/attachments/storetest": {"internal/attachments"},
		"internal/pgtest": {"internal/localpg", "internal/pgpool", "internal/testdir", "internal/worker",
			"migrations"},
		"internal/mlstest":              {"mls"},
		"internal/promtest":             {},
		"internal/testdir":              {},
		"internal/serviceauth/authtest": {"internal/serviceauth"},
		"internal/standby/standbytest":  {"internal/pgpool", "internal/pgtest", "internal/standby"},
		"clientsim/xrpc/xrpctest":       {"clientsim/xrpc"},
		"clientsim/testbed/testbedtest": {"clientsim/testbed", "clientsim/xrpc", "internal/testdir"},
		"internal/lexgen/examples":      {"lexicons"},
		"internal/mutants":              {},
		"internal/guide":                {},
		"internal/imports":              {},
		"deploy/ops":                    {},
	}
}

// foreign returns the rules for packages of others that only some of ours may import.
func foreign() []foreignRule {
	return []foreignRule{
		// The server's verdict must not rest on the code that made the object.
		{prefix: "github.com/thomas-vilte/mls-go", only: []string{"clientsim/mlsclient"}, tests: true},
		{prefix: "github.com/labstack/echo", only: []string{"api", "internal/node"}},
		{prefix: "net/http", only: []string{
			"api", "api/errorlist", "cmd/mlsd", "cmd/mlsd-dev", "internal/node", "operator", "operator/console",
			"cmd/mlsd-dev/devserver", "clientsim/attack", "clientsim/bench", "clientsim/client", "clientsim/history",
			"clientsim/scenario",
			"clientsim/soak", "clientsim/testbed", "clientsim/xrpc", "clientsim/xrpc/xrpctest", "internal/localpg",
			"internal/serviceauth", "internal/tracing", "internal/push", "internal/network",
		}},
		{prefix: "go.opentelemetry.io", only: []string{"internal/tracing"}},
		{prefix: "github.com/minio/minio-go", only: []string{"internal/attachments/s3store"}},
		{prefix: "github.com/sideshow/apns2", only: []string{"internal/push"}},
		// Only the tests of the alert rules and of the dashboard use it. Its other packages bring
		// hundreds of modules.
		{prefix: "github.com/prometheus/prometheus", only: []string{"internal/promtest"}},
		{prefix: "testing", only: []string{
			"internal/attachments/storetest", "internal/pgtest", "internal/mlstest", "internal/serviceauth/authtest",
			"internal/standby/standbytest", "internal/testdir", "internal/mutants",
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
	unwanted := []string{"github.com/thomas-vilte/mls-go", "clientsim", "cmd/mlsd-dev/devserver"}
	for name := range forTests() {
		unwanted = append(unwanted, name)
	}
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
	rules, helpers := allowed(), forTests()
	for _, p := range pkgs {
		permitted, known := rules[p.name()]
		if !known {
			permitted, known = helpers[p.name()]
		}
		if !known {
			found = append(found, fmt.Sprintf("%s is in neither table: say what it may import", p.name()))
			continue
		}
		for _, path := range p.Imports {
			name, ours := strings.CutPrefix(path, module+"/")
			if ours && name != everybodys && !slices.Contains(permitted, name) {
				found = append(found, fmt.Sprintf("%s imports %s", p.name(), name))
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
					found = append(found, fmt.Sprintf("%s imports %s", p.name(), path))
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
		name string
		pkg  pkg
		want []string
	}{
		{"allowed", pkg{ImportPath: "mlsd/convos", Imports: []string{"fmt", "mlsd/messages", "mlsd/mls"},
			XTestImports: []string{"mlsd/internal/pgtest", "testing", "net/http"}}, nil},
		{"a new package", pkg{ImportPath: "mlsd/federation"},
			[]string{"federation is in neither table: say what it may import"}},
		{"upwards", pkg{ImportPath: "mlsd/messages", Imports: []string{"mlsd/convos"}}, []string{"messages imports convos"}},
		{"generated types in the domain", pkg{ImportPath: "mlsd/convos", Imports: []string{"mlsd/api/mlsapi"}},
			[]string{"convos imports api/mlsapi"}},
		{"HTTP in the domain", pkg{ImportPath: "mlsd/idem",
			Imports: []string{"net/http/httptrace", "github.com/labstack/echo/v4"}},
			[]string{"idem imports github.com/labstack/echo/v4", "idem imports net/http/httptrace"}},
		{"the simulator looks inside", pkg{ImportPath: "mlsd/clientsim/testbed", Imports: []string{"mlsd/messages"}},
			[]string{"clientsim/testbed imports messages"}},
		{"test support outside of tests", pkg{ImportPath: "mlsd/cmd/mlsd", Imports: []string{"mlsd/internal/pgtest"}},
			[]string{"cmd/mlsd imports internal/pgtest"}},
		{"an MLS client in the server's tests",
			pkg{ImportPath: "mlsd/mls", XTestImports: []string{"github.com/thomas-vilte/mls-go/group"}},
			[]string{"mls imports github.com/thomas-vilte/mls-go/group"}},
		{"something that only looks like it",
			pkg{ImportPath: "mlsd/mls", Imports: []string{"github.com/thomas-vilte/mls-gone"}}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, violations([]pkg{tc.pkg})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
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
