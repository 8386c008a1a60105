package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every mutant fits the source, and its test exists. That it compiles, -check says.
func TestTable(t *testing.T) {
	t.Parallel()
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := readSource(root)
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Concat(mutants, rackBugs)
	if _, err := s.applyAll(all); err != nil {
		t.Error(err)
	}
	if err := testsExist(root, all); err != nil {
		t.Error(err)
	}
}

// maxMutants bounds the table. Its entries name code, so each costs an edit at many refactorings.
const maxMutants = 150

// No two mutants have one name, no entry is empty, and there are not too many.
func TestNames(t *testing.T) {
	t.Parallel()
	if len(mutants) > maxMutants {
		t.Errorf("%d mutants, at most %d: replace one of the same promise by the new one", len(mutants), maxMutants)
	}
	seen := map[string]bool{}
	for _, m := range slices.Concat(mutants, rackBugs) {
		if seen[m.name] || m.name == "" || len(m.edits) == 0 {
			t.Errorf("a second or an empty mutant: %q", m.name)
		}
		seen[m.name] = true
	}
	if _, err := choose(mutants, []string{"global-key", "no such bug"}); err == nil {
		t.Error("a name that no mutant has is not an error")
	}
}

// pile is a module with one package.
const pile = `package pile

import (
	"errors"
	"fmt"
)

const query = ` + "`" + `
	SELECT a, b -- not c
	FROM t
	WHERE  a = $1 AND b = $10` + "`" + `

type Pile struct{ n int }

// Push counts.
func (p *Pile) Push(n int) error {
	if n < 0 { // not zero
		return errors.New("negative")
	}
	p.n += n
	return Push(
		n,
		p.n,
	)
}

func Push(n, sum int) error {
	fmt.Println(n, n, sum)
	return nil
}
`

func pileSource(t *testing.T) *source {
	t.Helper()
	s := &source{"/m", map[string][]declaration{}}
	for name, text := range map[string]string{
		"pile/pile.go": pile,
		"other/other.go": "package other\n\nimport \"encoding/base64\"\n\nfunc Total(p, n int) int { p += n; return " +
			"p }\n\nvar Text = base64.StdEncoding\n",
		"pile/01_a.b.sql":     "CREATE FUNCTION f() -- makes f\nBEGIN\n    seq  :=  1;\nEND;\n",
		"pile/inner/inner.go": "package inner\n\nvar a, b = 1, 2\n\nvar (\n\tc = 3\n\td = 4\n)\n",
	} {
		if err := s.add(name, text); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// An edit changes the one place that it names, whatever the source's spaces, line breaks and
// comments are.
func TestApply(t *testing.T) {
	t.Parallel()
	s := pileSource(t)
	for what, c := range map[string]struct {
		edit     edit
		file     string // pile/pile.go unless said
		from, to string // of the file's text
	}{
		"method":   {edit: edit{"pile.Pile.Push", `p.n += n`, `p.n -= n`}, from: "p.n += n", to: "p.n -= n"},
		"function": {edit: edit{"pile.Push", `return nil`, `return err`}, from: "return nil", to: "return err"},
		"spaces":   {edit: edit{"pile.Pile.Push", `p . n+=n`, `p.n = 0`}, from: "p.n += n", to: "p.n = 0"},
		"comments": {edit: edit{"pile.Pile.Push", `if n < 0 { return`, `if n < 1 { return`},
			from: "if n < 0 { // not zero\n\t\treturn", to: "if n < 1 { return"},
		"line breaks and commas": {edit: edit{"pile.Pile.Push", `Push(n, p.n)`, `Push(0, 0)`},
			from: "Push(\n\t\tn,\n\t\tp.n,\n\t)", to: "Push(0, 0)"},
		"ellipsis": {edit: edit{"pile.Pile.Push", `if n < 0 { … }`, ``},
			from: "if n < 0 { // not zero\n\t\treturn errors.New(\"negative\")\n\t}", to: ""},
		"SQL in a string": {edit: edit{"pile.query", `SELECT a, b FROM t WHERE a = $1`, `SELECT a`},
			from: "SELECT a, b -- not c\n\tFROM t\n\tWHERE  a = $1", to: "SELECT a"},
		"whole words": {edit: edit{"pile.query", `$1`, `$2`}, from: "a = $1 AND", to: "a = $2 AND"},
		"type":        {edit: edit{"pile.Pile", `n int`, `n, m int`}, from: "{ n int", to: "{ n, m int"},
		"variable of a group": {edit: edit{"pile/inner.d", `= 4`, `= 5`}, file: "pile/inner/inner.go", from: "d = 4",
			to: "d = 5"},
		"second name": {edit: edit{"pile/inner.b", `2`, `3`}, file: "pile/inner/inner.go", from: "1, 2",
			to: "1, 3"},
		"SQL file": {edit: edit{"pile/01_a.b.sql", `BEGIN seq := 1`, `BEGIN seq := 2`}, file: "pile/01_a.b.sql",
			from: "BEGIN\n    seq  :=  1", to: "BEGIN seq := 2"},
	} {
		if c.file == "" {
			c.file = "pile/pile.go"
		}
		was := s.decls[c.edit.in][0].file.text
		want := strings.Replace(was, c.from, c.to, 1)
		changed, err := s.apply(mutant{edits: []edit{c.edit}})
		got := changed["/m/"+c.file]
		if err != nil || squeeze(got) != squeeze(want) || squeeze(got) == squeeze(was) {
			t.Errorf("%s: %v\n%s", what, err, got)
		}
		if s.decls[c.edit.in][0].file.text != was {
			t.Errorf("%s: the source has changed", what)
		}
	}
}

// squeeze removes what may change beside the place of an edit: white space, and an unused import.
func squeeze(text string) string {
	return regexp.MustCompile(`\s+|"errors"`).ReplaceAllString(text, "")
}

// An edit whose place is not there once is an error.
func TestNotFound(t *testing.T) {
	t.Parallel()
	s := pileSource(t)
	for what, c := range map[string]struct {
		edit  edit
		wants []string
	}{
		"another text": {edit{"pile.Pile.Push", `if n <= 0 { return nil`, ``},
			[]string{"pile.Pile.Push does not hold"}},
		"twice": {edit{"pile.Push", `n,`, ``}, []string{"3 times", "pile/pile.go:28: fmt.Println(n, n, sum)"}},
		"elsewhere": {edit{"pile.Push", `p.n += n`, ``},
			[]string{"pile.Push does not hold"}},
		"no such declaration": {edit{"other.Push", `p += n`, ``},
			[]string{"no declaration other.Push"}},
		"no such method": {edit{"pile.Pile.Pop", `fmt.Println`, ``},
			[]string{"no declaration pile.Pile.Pop"}},
		"other case":       {edit{"pile.query", `select a`, ``}, []string{"does not hold"}},
		"a part of a word": {edit{"pile.Push", `Print`, ``}, []string{"does not hold"}},
		"a comment":        {edit{"pile.query", `not c`, ``}, []string{"does not hold"}},
		"nothing":          {edit{"pile.Push", ` `, ``}, []string{"names no text"}},
	} {
		_, err := s.apply(mutant{edits: []edit{c.edit}})
		for _, want := range c.wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: want %q in: %v", what, want, err)
			}
		}
	}
	if _, err := s.apply(mutant{edits: []edit{{"pile.Push", `return nil`, ``}, {"pile.Push", `nil`, ``}}}); err == nil {
		t.Error("two edits of one place are no error")
	}
}

// Imports follow the new text.
func TestImports(t *testing.T) {
	t.Parallel()
	s := pileSource(t)
	changed, err := s.apply(mutant{edits: []edit{{"pile.Push", `fmt.Println(n, n, sum)`, `base64.NewDecoder(nil, nil)`}}})
	text := changed["/m/pile/pile.go"]
	if err != nil || !strings.Contains(text, `"encoding/base64"`) || strings.Contains(text, `"fmt"`) {
		t.Errorf("%v\n%s", err, text)
	}
}

// A bug is caught by a test that fails, in a binary in which the bug is. What does not compile is
// not caught: it is an error, and check finds it too.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"pile/pile.go": `package pile

import _ "embed"

//go:embed *.sql
var query string

func Query() string { return query }

type Pile struct{ n int }

func (p *Pile) Push(n int) error {
	switch {
	case n < 0:
		panic(n)
	default:
		p.n += n
	}
	return nil
}

func (p *Pile) N() int { return p.n }
`,
		"pile/query.sql": "SELECT 1",
		"other/other.go": `package other

import "m/pile"

func Push() (int, string) {
	var p pile.Pile
	for n := range 3 {
		_ = p.Push(n)
	}
	return p.N(), pile.Query()
}
`,
		"pile/pile_test.go": `package pile_test

import (
	_ "embed"
	"testing"
)

//go:embed query.sql
var query string

func TestQuery(t *testing.T) {
	if query != "SELECT 1" {
		t.Error(query)
	}
}
`,
		"other/other_test.go": `package other_test

import (
	"testing"

	"m/other"
)

func TestPush(t *testing.T) {
	t.Run("now", func(t *testing.T) {
		if n, query := other.Push(); n != 3 || query != "SELECT 1" {
			t.Errorf("got %d, %s", n, query)
		}
	})
}
`,
	} {
		name = filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	list := []mutant{
		{"lines", "other.TestPush", []edit{{"pile.Pile.Push", "p.n += n", "p.n += n\np.n++"}}},
		{"SQL", "other.TestPush", []edit{{"pile/query.sql", "1", "2"}}},
		{"SQL in a test", "pile.TestQuery", []edit{{"pile/query.sql", "1", "2"}}},
		{"inlined", "other.TestPush/now", []edit{{"pile.Pile.N", "p.n", "p.n + 1"}}},
		{"nothing", "other.TestPush", []edit{{"pile.Pile.Push", "n < 0", "n < -1"}}},
		{"subtest", "other.TestPush/then", []edit{{"pile.Pile.N", "p.n", "p.n + 1"}}},
		{"no Go", "other.TestPush", []edit{{"pile.Pile.Push", "p.n += n", "p.n += p"}}},
	}
	var out strings.Builder
	err := judgeTests(t.Context(), root, list, &out)
	text := fmt.Sprint(out.String(), err)
	for _, want := range []string{
		`caught +lines .*other_test.go:12: got 6, SELECT 1\n`, `caught +SQL .*got 3, SELECT 2\n`,
		`caught +SQL in a test .*: SELECT 2\n`,
		`caught +inlined .*got 4, SELECT 1\n`,
		`SURVIVED +nothing `, `BROKEN +no Go `,
		`no Go: the test was not judged: go: .*\n(.*\n)*.*pile.go:17:.*mismatched types`, `2 of 7 survived: nothing, subtest`,
	} {
		if err == nil || !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("want %s in:\n%s", want, text)
		}
	}
	list[0].test, list[1].edits[0].in = "other.TestPop", "pile/other.sql"
	err = check(t.Context(), root, list)
	for _, want := range []string{`lines: there is no other\.TestPop`, `SQL: there is no declaration pile/other\.sql`,
		`no Go: .*mismatched types`} {
		if err == nil || !regexp.MustCompile(want).MatchString(err.Error()) {
			t.Errorf("check: want %s in:\n%v", want, err)
		}
	}
	if err := check(t.Context(), root, list[2:6]); err != nil {
		t.Error(err)
	}
}

// What a run of the rack found is in its report. A run that ended without a report found nothing.
func TestRackVerdict(t *testing.T) {
	t.Parallel()
	report := "seed 7, 45s\nnote: slow\n12 faults\nlost 0, doubled 2, broken 1\n  doubled: a message\n  violated: a " +
		"promise\n"
	for output, want := range map[string]string{
		report: "lost 0, doubled 2, broken 1: doubled: a message",
		"seed 7, 45s\nlost 0, doubled 0, broken 0\n": "",
		"clientsim: no PostgreSQL\n":                 "",
	} {
		if got := violation(output); got != want {
			t.Errorf("%q says %q, want %q", output, got, want)
		}
	}
}
