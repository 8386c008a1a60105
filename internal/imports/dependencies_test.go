package imports_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"mlsd/internal/moduletest"
)

// A direct requirement of go.mod has a comment that says why it is there, and docs/DEPENDENCIES.md has
// all of them.
func TestDependenciesAreDocumented(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| module | why |\n|---|---|\n")
	for line := range strings.Lines(string(mod)) {
		requirement, comment, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "require "), " // ")
		module, version, isRequirement := strings.Cut(requirement, " ")
		if !isRequirement || !strings.HasPrefix(version, "v") || comment == "indirect" {
			continue
		}
		if !strings.Contains(comment, "; kept by: ") || !strings.Contains(comment, "; instead: ") {
			t.Errorf("go.mod, %s: its comment does not say why it is there, who keeps it, and what would replace it",
				module)
		}
		fmt.Fprintf(&want, "| `%s` | %s |\n", module, comment)
	}
	moduletest.Table(t, "docs/DEPENDENCIES.md", "", want.String())
}

// The server is built on the libraries that its first design names.
func TestStack(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, p := range list(t, "-deps", "./cmd/mlsd") {
		if below(p.ImportPath, module) {
			for _, path := range p.Imports {
				used[path] = true
			}
		}
	}
	for _, path := range []string{
		"github.com/labstack/echo/v4", "github.com/jackc/pgx/v5/pgxpool", "github.com/google/uuid",
		"github.com/bluesky-social/indigo/atproto/syntax",
	} {
		if !used[path] {
			t.Errorf("no package of the server imports %s", path)
		}
	}
}
