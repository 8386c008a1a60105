package imports_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mlsd/internal/moduletest"
)

// maxFolders is how many folders stand at the top. A newcomer finds each at first sight.
const maxFolders = 21

func TestTopLevelFolders(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			folders = append(folders, e.Name())
		}
	}
	if len(folders) > maxFolders {
		t.Errorf("%d folders at the top, at most %d: %q", len(folders), maxFolders, folders)
	}
}

// maxDoc is how many lines of comment the doc.go of a folder has at most.
const maxDoc = 10

// A top-level folder with Go packages says in its doc.go what is in it, what it may import and who
// calls it.
func TestFoldersSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	others := []string{"cmd", "deploy"} // programs
	seen := map[string]bool{}
	for _, p := range list(t, "./...") {
		folder, _, _ := strings.Cut(p.name(), "/")
		if seen[folder] || slices.Contains(others, folder) {
			continue
		}
		seen[folder] = true
		text, err := os.ReadFile(filepath.Join(root, folder, "doc.go"))
		if err != nil {
			t.Errorf("%v: say there what is in the folder, what it may import and who calls it", err)
			continue
		}
		comment, _, _ := strings.Cut(string(text), "\npackage ")
		lines := strings.Count(comment, "\n") + 1
		if !strings.HasPrefix(comment, "// Package "+folder+" ") || lines > maxDoc || !strings.Contains(comment, "import") {
			t.Errorf("%s/doc.go has %d lines: begin with \"// Package %s \", and say what it may import, in at most %d lines",
				folder, lines, folder, maxDoc)
		}
	}
	if len(seen) < 12 {
		t.Errorf("only %d folders have packages: %v", len(seen), seen)
	}
}

// The page's table of packages has each package, and what its comment says first. It does not run
// beside TestTables and TestWorkers: with -update they write the page, too.
func TestFolders(t *testing.T) {
	var want strings.Builder
	want.WriteString("| package | it |\n|---|---|\n")
	for _, p := range list(t, "./...") {
		if p.Doc != "" {
			_, says, _ := strings.Cut(strings.TrimPrefix(p.Doc, "Package "), " ")
			if rest, command := strings.CutPrefix(p.Doc, "Command "); command {
				_, says, _ = strings.Cut(rest, " ")
			}
			fmt.Fprintf(&want, "| `%s` | %s |\n", p.name(), strings.TrimRight(says, ".:"))
		}
	}
	moduletest.Table(t, tablesPage, "Packages", want.String())
}

var started = regexp.MustCompile(`\brounds\.Every\("([^"]+)",\s*([\w.]+)`)

// The page's table of workers has each worker of a node, its interval and the file that starts it.
func TestWorkers(t *testing.T) {
	var rows []string
	for file, source := range moduletest.Files(t, ".go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, found := range started.FindAllStringSubmatch(source, -1) {
			rows = append(rows, fmt.Sprintf("| %s | `%s` | `%s` |\n", found[1], found[2], file))
		}
	}
	if len(rows) < 15 {
		t.Errorf("the program starts %d workers: the test finds too few", len(rows))
	}
	slices.Sort(rows)
	moduletest.Table(t, tablesPage, "Workers", "| worker | interval | file |\n|---|---|---|\n"+strings.Join(rows, ""))
}
