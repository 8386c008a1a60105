package imports_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// docs/DEPENDENCIES.md says of each direct requirement why it is there, and of no other module.
func TestDependenciesAreDocumented(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/DEPENDENCIES.md")
	if err != nil {
		t.Fatal(err)
	}
	var required, documented []string
	for line := range strings.Lines(string(mod)) {
		fields := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(fields) == 2 && strings.HasPrefix(fields[1], "v") {
			required = append(required, fields[0])
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^` ]+)` \\|(.*)\\|$").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, row[1])
		for _, cell := range strings.Split(row[2], "|") {
			if strings.TrimSpace(cell) == "" {
				t.Errorf("%s: a cell is empty", row[1])
			}
		}
	}
	slices.Sort(required)
	slices.Sort(documented)
	if diff := cmp.Diff(required, documented); diff != "" {
		t.Errorf("direct requirements of go.mod (-) and docs/DEPENDENCIES.md (+):\n%s", diff)
	}
}
