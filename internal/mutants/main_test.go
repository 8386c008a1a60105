package main

import (
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every mutant still fits the source: its text is there once, and what comes out is Go.
func TestTable(t *testing.T) {
	t.Parallel()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] {
			t.Errorf("two mutants are called %s", m.name)
		}
		names[m.name] = true
		files, err := m.apply(root)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		for path, text := range files {
			if filepath.Ext(path) != ".go" {
				continue
			}
			if _, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		}
	}
}

// Every test that the table names exists.
func TestTestsExist(t *testing.T) {
	t.Parallel()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{} // by package and name
	for _, m := range mutants {
		pkg, name := m.place()
		files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if declared[file] {
				continue
			}
			declared[file] = true
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
				declared[pkg+"."+match[1]] = true
			}
		}
		if !declared[pkg+"."+name] {
			t.Errorf("%s: there is no %s", m.name, m.test)
		}
	}
}

// A text that is gone or stands twice is an error, and the source stays as it is.
func TestApply(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(root+"/a.go", []byte("one two two"), 0o600); err != nil {
		t.Fatal(err)
	}
	for old, want := range map[string]string{"one": "x two two", "two": "", "three": ""} {
		files, err := mutant{edits: []edit{{"a.go", old, "x"}}}.apply(root)
		if (err == nil) != (want != "") || files[root+"/a.go"] != want {
			t.Errorf("%q: %v, %v", old, files, err)
		}
	}
	if raw, err := os.ReadFile(root + "/a.go"); err != nil || string(raw) != "one two two" {
		t.Errorf("the source is %q, %v", raw, err)
	}
}

// What does not compile is not caught: it is an error.
func TestNotJudged(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("there is no go command")
	}
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	m := mutant{edits: []edit{{"welcome/welcome.go", "package welcome", "package welcome\n\nvar broken int = `x`"}}, test: "TestErrorStatuses"}
	if why, err := m.try(t.Context(), root); why != "" || err == nil || !strings.Contains(err.Error(), "not judged") {
		t.Errorf("caught: %q, %v", why, err)
	}
}
