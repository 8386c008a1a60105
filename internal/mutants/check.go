package main

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// check reports which mutants are outdated: a place is not found, the result is not Go, or the test
// does not exist. It runs no test.
func check(ctx context.Context, root string, list []mutant) error {
	s, err := readSource(root)
	if err != nil {
		return err
	}
	c, err := newChecker(ctx, root, list)
	if err != nil {
		return err
	}
	problems := make([]error, len(list))
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, m := range list {
		group.Go(func() error {
			changed, err := s.apply(m)
			if err == nil {
				err = c.compile(changed)
			}
			if err != nil {
				problems[i] = fmt.Errorf("%s: %w", m.name, err)
			}
			return nil
		})
	}
	return errors.Join(append(problems, group.Wait(), testsExist(root, list))...)
}

// checker type-checks packages in this process.
type checker struct {
	packages map[string]*listed // by directory
	fset     *token.FileSet

	mu      sync.Mutex // guards the fields below
	imports types.Importer
	parsed  map[string]*ast.File // by name
}

// newChecker has go compile what the packages of the mutants import.
func newChecker(ctx context.Context, root string, list []mutant) (*checker, error) {
	dirs := map[string]bool{}
	for _, m := range list {
		for _, e := range m.edits {
			dirs["./"+packageOf(e.in)] = true
		}
	}
	all, err := goList(ctx, root, slices.Sorted(maps.Keys(dirs))...)
	if err != nil {
		return nil, err
	}
	c := &checker{packages: map[string]*listed{}, fset: token.NewFileSet(), parsed: map[string]*ast.File{}}
	for _, p := range all {
		c.packages[p.Dir] = p
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(all[path].Export) }
	c.imports = importer.ForCompiler(c.fset, "gc", open)
	return c, nil
}

// Import implements types.Importer.
func (c *checker) Import(path string) (*types.Package, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.imports.Import(path)
}

// compile returns the type errors of the packages with the changed files.
func (c *checker) compile(changed map[string]string) error {
	dirs := map[string]bool{}
	for name := range changed {
		if filepath.Ext(name) == ".go" {
			dirs[filepath.Dir(name)] = true
		}
	}
	for dir := range dirs {
		p := c.packages[dir]
		if p == nil {
			return fmt.Errorf("go list knows no package in %s", dir)
		}
		var files []*ast.File
		for _, base := range p.GoFiles {
			f, err := c.parse(filepath.Join(dir, base), changed)
			if err != nil {
				return err
			}
			files = append(files, f)
		}
		conf := types.Config{Importer: c, GoVersion: p.lang()}
		if _, err := conf.Check(p.ImportPath, c.fset, files, nil); err != nil {
			return err
		}
	}
	return nil
}

// parse parses a changed file. For an unchanged file, it returns the earlier result.
func (c *checker) parse(name string, changed map[string]string) (*ast.File, error) {
	if text, has := changed[name]; has {
		return parser.ParseFile(c.fset, name, text, parser.SkipObjectResolution)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parsed[name] == nil {
		f, err := parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		c.parsed[name] = f
	}
	return c.parsed[name], nil
}

// testsExist reports which mutants name a test that does not exist. A mutant without a test is for
// clientsim torture.
func testsExist(root string, list []mutant) error {
	tests := map[string]map[string]bool{}
	var missing []error
	for _, m := range list {
		pkg, name := m.place()
		name, _, _ = strings.Cut(name, "/")
		if name == "" {
			continue
		}
		if tests[pkg] == nil {
			var err error
			if tests[pkg], err = testsOf(filepath.Join(root, filepath.FromSlash(pkg))); err != nil {
				return err
			}
		}
		if !tests[pkg][name] {
			missing = append(missing, fmt.Errorf("%s: there is no %s.%s", m.name, pkg, name))
		}
	}
	return errors.Join(missing...)
}

// testsOf returns the names of the tests in a directory.
func testsOf(dir string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	tests := map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for _, found := range testFunc.FindAllSubmatch(text, -1) {
			tests[string(found[1])] = true
		}
	}
	return tests, nil
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
