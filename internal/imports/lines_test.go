package imports_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"mlsd/internal/moduletest"
)

const maxColumns = 120

// tables are files of which each row is one line.
var tables = map[string]bool{
	"api/errors.go":                      true,
	"api/methods.go":                     true,
	"clientsim/scenario/scenario.go":     true,
	"cmd/mlsd/promises_test.go":          true,
	"cmd/mlsd/requirementstable_test.go": true,
	"internal/lexgen/breaking_test.go":   true,
	"internal/mutants/racktable.go":      true,
	"internal/mutants/table.go":          true,
	"node/settings.go":                   true,
	"lexicons/frozen_test.go":            true,
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// No line of Go that a person wrote is longer than 120 columns.
func TestLines(t *testing.T) {
	t.Parallel()
	files := 0
	for name, source := range moduletest.Files(t, ".go") {
		if tables[name] || generated.MatchString(source) {
			continue
		}
		files++
		n := 0
		for line := range strings.Lines(source) {
			n++
			if columns := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); columns > maxColumns {
				t.Errorf("%s:%d has %d columns, at most %d", name, n, columns, maxColumns)
			}
		}
	}
	if files < 500 {
		t.Errorf("only %d files were read", files)
	}
}
