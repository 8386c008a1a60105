package imports_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	wantSection(t, "Packages", want.String())
}

// wantSection expects the generated table of a section of the page. With -update it writes it.
func wantSection(t *testing.T, heading, want string) {
	t.Helper()
	begins, ends := "\n## "+heading+"\n", "<!-- end -->\n"
	name := filepath.Join(root, tablesPage)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, section, found := strings.Cut(string(text), begins)
	intro, section, marked := strings.Cut(section, generatedMark)
	got, after, closed := strings.Cut(section, ends)
	if !found || !marked || !closed {
		t.Fatalf("%s has no section %s with a generated table", tablesPage, heading)
	}
	if *update {
		got = want
		page := before + begins + intro + generatedMark + got + ends + after
		if err := os.WriteFile(name, []byte(page), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s, %s, differs from the source (-want +got):\n%s\nto write it: "+
			"go test ./internal/imports -run %s -update", tablesPage, heading, diff, t.Name())
	}
}

// generatedMark stands above a table that a test writes.
const generatedMark = "<!-- generated -->\n"

var started = regexp.MustCompile(`\brounds\.Every\("([^"]+)",\s*([\w.]+)`)

// The page's table of workers has each worker of a node, its interval and the file that starts it.
func TestWorkers(t *testing.T) {
	var rows []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		file := filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator)))
		for _, found := range started.FindAllStringSubmatch(string(source), -1) {
			rows = append(rows, fmt.Sprintf("| %s | `%s` | `%s` |\n", found[1], found[2], file))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 15 {
		t.Errorf("the program starts %d workers: the test finds too few", len(rows))
	}
	slices.Sort(rows)
	wantSection(t, "Workers", "| worker | interval | file |\n|---|---|---|\n"+strings.Join(rows, ""))
}
