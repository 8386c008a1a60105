package imports_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mlsd/internal/moduletest"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

// sighting is a table in the SQL of a package.
type sighting struct {
	use
	pkg, file string // of the module
	line      int
}

// The page says for each table which package owns it and which packages write and read it. The SQL
// in the server's packages must agree.
func TestTables(t *testing.T) {
	t.Parallel()
	tables := tablesAfter(readMigrations(t))
	if len(tables) < 20 {
		t.Fatalf("the migrations make only %d tables", len(tables))
	}
	seen := sightings(t, tables)
	name := filepath.Join(root, tablesPage)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	page, err := splitPage(string(text))
	if err != nil {
		t.Fatal(err)
	}
	want := rowsOf(tables, page.owners(), seen)
	if *moduletest.Update {
		if err := os.WriteFile(name, []byte(page.with(want)), 0o666); err != nil {
			t.Fatal(err)
		}
		if page, err = splitPage(page.with(want)); err != nil {
			t.Fatal(err)
		}
	}
	for _, complaint := range complaints(page.rows, want, seen) {
		t.Error(complaint)
	}
}

func readMigrations(t *testing.T) (texts []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "migrations", "*.up.sql"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// sightings finds the tables in the string literals and .sql files of the packages that the server
// is built of.
func sightings(t *testing.T, tables map[string]bool) (found []sighting) {
	t.Helper()
	isTable := func(name string) bool { return tables[name] }
	for _, p := range list(t, "-deps", "./cmd/mlsd") {
		if !below(p.ImportPath, module) || p.name() == "migrations" {
			continue
		}
		dir := filepath.Join(root, p.name())
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			name := e.Name()
			if e.IsDir() || strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			for line, sql := range sqlOf(t, name, text) {
				for _, u := range uses(sql, isTable) {
					found = append(found, sighting{use: u, pkg: p.name(), file: name, line: line + u.line})
				}
			}
		}
	}
	slices.SortFunc(found, func(a, b sighting) int {
		return strings.Compare(fmt.Sprintf("%s/%s:%9d", a.pkg, a.file, a.line),
			fmt.Sprintf("%s/%s:%9d", b.pkg, b.file, b.line))
	})
	return found
}

// sqlOf returns the pieces of a file that may be SQL, by the line at which they begin.
func sqlOf(t *testing.T, name string, text []byte) map[int]string {
	t.Helper()
	switch filepath.Ext(name) {
	case ".sql":
		return map[int]string{1: string(text)}
	case ".go":
		pieces, err := literals(name, text)
		if err != nil {
			t.Fatal(err)
		}
		return pieces
	}
	return nil
}

// literals returns the string literals of a Go file. A literal that is added to one before it in
// the same expression is a piece of the same text.
func literals(name string, source []byte) (map[int]string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	pieces := map[int]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if n.Kind != token.STRING {
				return true
			}
			text, unquoteErr := strconv.Unquote(n.Value)
			if unquoteErr != nil {
				err = unquoteErr
			}
			line := files.Position(n.Pos()).Line
			pieces[line] += text + "\n;" // two literals of a line are two statements
		}
		return true
	})
	return pieces, err
}

func TestUses(t *testing.T) {
	t.Parallel()
	isTable := func(name string) bool { return name == "a" || name == "b" || name == "c" }
	for sql, want := range map[string]string{
		`SELECT * FROM a`: "reads a",
		`SELECT 1
			FROM a x, b AS y (p, q), LATERAL (SELECT 2 FROM c) z`: "reads a, reads b, reads c",
		`SELECT x, b FROM a WHERE y IN (1, b)`:                                     "reads a",
		`SELECT FROM x JOIN a ON true LEFT JOIN b USING (id), c`:                   "reads c, reads a, reads b",
		`INSERT INTO a SELECT * FROM b ON CONFLICT (x) DO UPDATE SET y = c, z = b`: "writes a, reads b",
		`UPDATE ONLY a SET x = 1 FROM b WHERE c IS DISTINCT FROM c`:                "writes a, reads b",
		`DELETE FROM a USING b, c WHERE true`:                                      "writes a, reads b, reads c",
		`SELECT 1 FROM a FOR UPDATE`:                                               "reads a",
		`SELECT 1 FROM b FOR NO KEY UPDATE`:                                        "reads b",
		`SELECT extract(epoch FROM a), b FROM c`:                                   "reads a, reads c",
		`SELECT 'FROM a', "x" -- FROM b
			FROM c`: "reads c",
		`read it from a, or update b`:                     "",
		`WITH x AS (SELECT FROM a), b AS (SELECT) SELECT`: "reads a",
	} {
		var got []string
		for _, u := range uses(sql, isTable) {
			verb := "reads "
			if u.write {
				verb = "writes "
			}
			got = append(got, verb+u.table)
		}
		if diff := cmp.Diff(want, strings.Join(got, ", ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", sql, diff)
		}
	}
}

func TestTablesAfter(t *testing.T) {
	t.Parallel()
	got := tablesAfter([]string{"CREATE TABLE a (\n);\nCREATE UNLOGGED TABLE b (\n);", "DROP TABLE a;\n",
		"DROP TABLE b;\nCREATE TABLE IF NOT EXISTS b (\n);"})
	if diff := cmp.Diff(map[string]bool{"b": true}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The test of the page finds what is wrong, and an update mends it.
func TestComplaints(t *testing.T) {
	t.Parallel()
	seen := []sighting{
		{use{table: "a", write: true}, "x", "one.go", 3}, {use{table: "a"}, "y", "two.go", 4},
		{use{table: "a"}, "x", "one.go", 5},
		{use{table: "b", write: true}, "x", "one.go", 6}, {use{table: "b", write: true}, "y", "two.go", 7},
		{use{table: "c"}, "y", "two.go", 8},
	}
	text := "# Page\n\n" + tablesHeading + "\n\nText.\n\n" + columns + "\n|---|---|---|---|---|\n" +
		"| `a` | `x` | `x` (and triggers, two) | – | `x/one.go` |\n| `b` | `z` | `x`, `y` | | |\n| `gone` | `x` | | | " +
		"|\n\nMore.\n"
	p, err := splitPage(text)
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]bool{"a": true, "b": true, "c": true}
	want := rowsOf(tables, p.owners(), seen)
	var got []string
	for _, c := range complaints(p.rows, want, seen) {
		got = append(got, strings.TrimSuffix(strings.TrimPrefix(c, tablesPage),
			"; correct it, or run go test ./internal/imports -run TestTables -update"))
	}
	if diff := cmp.Diff([]string{
		": a, column readers: it says [], the SQL says [y] (see y/two.go:4)",
		": b is owned by z, which does not write it; name one of [x y]",
		" lacks the table c",
		" has the table gone, which the migrations do not make",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	mended, err := splitPage(strings.ReplaceAll(p.with(want), "`z`", "`y`"))
	if err != nil {
		t.Fatal(err)
	}
	if mended.before != p.before || mended.after != "\nMore.\n" {
		t.Errorf("an update changes what is around the table: %q, %q", mended.before, mended.after)
	}
	// the file of b's new owner
	if got := complaints(mended.rows, rowsOf(tables, mended.owners(), seen), seen); len(got) != 1 {
		t.Errorf("after the update: %v", got)
	}
}
