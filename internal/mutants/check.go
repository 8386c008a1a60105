package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// check reports which mutants are outdated: a place is not found, the result is not Go, or the test
// does not exist. It runs no test.
func check(ctx context.Context, root string, list []mutant) error {
	s, err := readSource(root)
	if err != nil {
		return err
	}
	c, err := newChecker(ctx, root)
	if err != nil {
		return err
	}
	problems := []error{testsExist(root, list)}
	for _, m := range list {
		changed, err := s.apply(m)
		if err == nil {
			err = c.compile(changed)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	return errors.Join(problems...)
}

// checker type-checks packages in this process.
type checker struct {
	fset   *token.FileSet
	config types.Config
	files  map[string][]string  // by directory of the package
	parsed map[string]*ast.File // by name
}

// newChecker has go compile the packages of the module and everything that they import.
func newChecker(ctx context.Context, root string) (*checker, error) {
	const format = `{{.ImportPath}}|{{.Export}}|{{.Dir}}|{{join .GoFiles "|"}}`
	list, err := command(ctx, root, "go", "list", "-deps", "-export", "-f", format, "./...")
	if err != nil {
		return nil, err
	}
	c := &checker{fset: token.NewFileSet(), files: map[string][]string{}, parsed: map[string]*ast.File{}}
	compiled := map[string]string{}
	for line := range strings.Lines(string(list)) {
		p := strings.Split(strings.TrimSpace(line), "|")
		compiled[p[0]], c.files[p[2]] = p[1], p[3:]
	}
	c.config.Importer = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(compiled[path])
	})
	return c, nil
}

// compile returns the type errors of the packages with the changed files.
func (c *checker) compile(changed map[string]string) error {
	dirs := map[string]bool{}
	for name := range changed {
		dirs[filepath.Dir(name)] = true
	}
	for dir := range dirs {
		var files []*ast.File
		for _, base := range c.files[dir] {
			f, err := c.parse(filepath.Join(dir, base), changed)
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		if _, err := c.config.Check(dir, c.fset, files, nil); err != nil {
			return err
		}
	}
	return nil
}

// parse parses a changed file. For an unchanged file, it returns the earlier result.
func (c *checker) parse(name string, changed map[string]string) (f *ast.File, err error) {
	if text, has := changed[name]; has {
		return parser.ParseFile(c.fset, name, text, parser.SkipObjectResolution)
	}
	if c.parsed[name] == nil {
		c.parsed[name], err = parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution)
	}
	return c.parsed[name], err
}

// testsExist reports which mutants name a test that does not exist. A mutant without a test is for
// clientsim torture.
func testsExist(root string, list []mutant) error {
	var missing []error
	for _, m := range list {
		pkg, name := m.place()
		name, _, _ = strings.Cut(name, "/")
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go"))
		if err != nil {
			return err
		}
		declares := func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && bytes.Contains(text, []byte("\nfunc "+name+"("))
		}
		if name != "" && !slices.ContainsFunc(files, declares) {
			missing = append(missing, fmt.Errorf("%s: there is no %s.%s", m.name, pkg, name))
		}
	}
	return errors.Join(missing...)
}
