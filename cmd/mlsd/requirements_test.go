package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mlsd/internal/moduletest"
)

// Every row of the requirements is true, decided otherwise or open, and names tests or files that
// show it and exist. The page has the rows of the table, and counts them right.
func TestRequirementsPage(t *testing.T) {
	const path = "docs/REQUIREMENTS.md"
	for _, section := range requirements() {
		rows := "| requirement | stands | shown by |\n|---|---|---|\n"
		for _, r := range section.rows {
			rows += "| " + r.asked + " | " + r.stands + " | `" + strings.Join(strings.Fields(r.shown), "`, `") + "` |\n"
		}
		moduletest.Table(t, path, section.heading, rows)
	}
	page := pages(t)[path]
	row := regexp.MustCompile(`(?m)^\| .+ \| (true|decided|open)(?:: .+)? \| ([^|]+) \|$`)
	states := map[string]int{}
	for _, section := range strings.Split(page, "\n## ")[1:] {
		shownByTests(t, path, section, 1)
		rows := row.FindAllStringSubmatch(section, -1)
		if all := strings.Count(section, "\n| ") - 1; all != len(rows) { // without the heads
			t.Errorf("%d of %d rows have a state: %.30s", len(rows), all, section)
		}
		for _, r := range rows {
			states[r[1]]++
			for _, file := range regexp.MustCompile("`([^` ]*/[^` ]*)`").FindAllStringSubmatch(r[2], -1) {
				if _, err := os.Stat(filepath.Join(root, file[1])); err != nil {
					t.Error(err)
				}
			}
		}
	}
	want := fmt.Sprintf("%d true, %d decided, %d open.", states["true"], states["decided"], states["open"])
	if !strings.Contains(page, want) {
		t.Errorf("%s does not say: %s", path, want)
	}
}
