package api

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the table of methods of docs/LIMITS.md")

// The page of limits has what each method costs and takes, from the program's own table.
func TestLimitsPage(t *testing.T) {
	const name, heading, begins, ends = "../docs/LIMITS.md", "\n## Methods\n", "<!-- generated -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, section, found := strings.Cut(string(text), heading)
	intro, section, marked := strings.Cut(section, begins)
	got, after, closed := strings.Cut(section, ends)
	if !found || !marked || !closed {
		t.Fatalf("%s has no section Methods with a generated table", name)
	}
	var want strings.Builder
	want.WriteString("| method | units | body, KiB at most | expensive | time |\n|---|---|---|---|---|\n")
	for _, nsid := range slices.Sorted(maps.Keys(methods)) {
		p := methods[nsid]
		body, expensive, most := "–", "", maxRequest
		if p.maxBody > 0 {
			body = fmt.Sprint(p.maxBody / kib)
		}
		if p.expensive {
			expensive = "yes"
		}
		if p.maxTime > 0 {
			most = p.maxTime
		}
		method := strings.TrimPrefix(nsid, "blue.catbird.mls.")
		fmt.Fprintf(&want, "| `%s` | %d | %s | %s | %s |\n", method, max(1, p.cost), body, expensive, most)
	}
	if *update {
		got = want.String()
		page := before + heading + intro + begins + got + ends + after
		if err := os.WriteFile(name, []byte(page), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want.String(), got); diff != "" {
		t.Errorf("%s differs from the table of methods (-want +got):\n%s\nto write it: "+
			"go test ./api -run TestLimitsPage -update", name, diff)
	}
}
