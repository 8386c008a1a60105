package imports_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

var quoted = regexp.MustCompile("`([^`]+)`")

// The page's table of folders names each package, or a folder above it, and each table's owner.
func TestFolders(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, tablesPage))
	if err != nil {
		t.Fatal(err)
	}
	page, err := splitPage(string(text))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Folders\n")
	section, _, ends := strings.Cut(section, "\n## ")
	if !found || !ends {
		t.Fatalf("%s has no section Folders, or it is the last one", tablesPage)
	}
	owners := map[string]string{}
	var folders []string
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || !strings.HasPrefix(cells[1], " `") {
			continue
		}
		for i, name := range quoted.FindAllStringSubmatch(cells[1], -1) {
			folders = append(folders, name[1])
			for _, table := range quoted.FindAllStringSubmatch(cells[3], -1) {
				if i == 0 {
					owners[table[1]] = name[1]
				}
			}
		}
	}
	for _, folder := range folders {
		if info, err := os.Stat(filepath.Join(root, folder)); err != nil || !info.IsDir() {
			t.Errorf("%s names %s, which is no folder", tablesPage, folder)
		}
	}
	for _, p := range list(t, "./...") {
		if !slices.ContainsFunc(folders, func(folder string) bool { return below(p.name(), folder) }) {
			t.Errorf("%s, table of folders: neither %s nor a folder above it is there", tablesPage, p.name())
		}
	}
	if diff := cmp.Diff(page.owners(), owners); diff != "" {
		t.Errorf("%s: owners by the table of tables (-) and by that of folders (+):\n%s", tablesPage, diff)
	}
}

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
