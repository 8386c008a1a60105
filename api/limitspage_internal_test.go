package api

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"mlsd/internal/moduletest"
)

// The page of limits has what each method costs and takes, from the program's own table.
func TestLimitsPage(t *testing.T) {
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
	moduletest.Table(t, "docs/LIMITS.md", "Methods", want.String())
}
