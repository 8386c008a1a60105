package imports_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mostFolders is how many folders stand at the top. A newcomer finds each at first sight.
const mostFolders = 18

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
	if len(folders) > mostFolders {
		t.Errorf("%d folders at the top, at most %d: %q", len(folders), mostFolders, folders)
	}
}

// The page's table of packages has each package, and what its comment says first. It does not run
// beside TestTables: with -update both write the page.
func TestFolders(t *testing.T) {
	const begins, ends = "\n## Packages\n", "<!-- end -->\n"
	name := filepath.Join(root, tablesPage)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, section, found := strings.Cut(string(text), begins)
	intro, section, marked := strings.Cut(section, generatedMark)
	got, after, closed := strings.Cut(section, ends)
	if !found || !marked || !closed {
		t.Fatalf("%s has no section Packages with a generated table", tablesPage)
	}
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
	if *update {
		got = want.String()
		page := before + begins + intro + generatedMark + got + ends + after
		if err := os.WriteFile(name, []byte(page), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want.String(), got); diff != "" {
		t.Errorf("%s differs from the comments of packages (-want +got):\n%s\nto write it: "+
			"go test ./internal/imports -run TestFolders -update", tablesPage, diff)
	}
}

// generatedMark stands above a table that a test writes.
const generatedMark = "<!-- generated -->\n"

var started = regexp.MustCompile(`\brounds\.Every\("([^"]+)"`)

// The page's table of workers names each worker of a node.
func TestWorkers(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, tablesPage))
	if err != nil {
		t.Fatal(err)
	}
	workers := 0
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, name := range started.FindAllStringSubmatch(string(source), -1) {
			workers++
			if !strings.Contains(string(page), "\n| "+name[1]+" |") {
				t.Errorf("%s, table of workers: %q of %s is missing", tablesPage, name[1], path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if workers < 15 {
		t.Errorf("the program starts %d workers: the test finds too few", workers)
	}
}
