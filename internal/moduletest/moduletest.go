// Package moduletest lets tests look at the files of the module, and write the tables of its pages.
package moduletest

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Update says that tests write what they would otherwise compare.
var Update = flag.Bool("update", false, "write the tables and files that tests generate")

// The marks of a table that a test writes.
const (
	tableBegins = "<!-- generated -->\n"
	tableEnds   = "<!-- end -->\n"
)

// Root returns the directory of the module, which is above the directory of the test.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("there is no go.mod above the test")
		}
	}
}

// Files returns the texts of the module's files with certain endings, by path from the root, with
// slashes. It leaves out hidden directories, and packages of npm.
func Files(t testing.TB, endings ...string) map[string]string {
	t.Helper()
	module, files := os.DirFS(Root(t)), map[string]string{}
	err := fs.WalkDir(module, ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == "node_modules" || strings.HasPrefix(e.Name(), ".") && path != "."):
			return fs.SkipDir
		case e.IsDir() || !slices.Contains(endings, filepath.Ext(path)):
			return nil
		}
		text, err := fs.ReadFile(module, path)
		files[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Table expects the first table between marks in a section of a page, or of the whole page if
// heading is empty. page is a path from the root. With -update, Table writes the table.
func Table(t testing.TB, page, heading, want string) {
	t.Helper()
	name := filepath.Join(Root(t), page)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	section := string(text)
	if heading != "" {
		_, section, _ = strings.Cut(section, "\n## "+heading+"\n")
	}
	_, rest, begins := strings.Cut(section, tableBegins)
	got, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatalf("%s has no generated table below %q", page, heading)
	}
	if *Update {
		before := strings.TrimSuffix(string(text), got+tableEnds+after)
		if err := os.WriteFile(name, []byte(before+want+tableEnds+after), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s, %s, differs from what the test says (-want +got):\n%s\nto write it: go test -run %s -update",
			page, heading, diff, t.Name())
	}
}
