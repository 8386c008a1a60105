package main

import (
	"bytes"
	"context"
	"encoding/json"
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
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// check says which of the mutants are out of date: a place is not found, what comes out is not Go,
// or there is no such test. It runs no test.
func check(ctx context.Context, root string, list []mutant) error {
	s, err := readSource(root)
	if err != nil {
		return err
	}
	c, err := newChecker(ctx, root, list)
	if err != nil {
		return err
	}
	var problems []error
	for _, m := range list {
		err := c.testExists(m)
		if err == nil {
			var changed map[string]string
			if changed, err = s.apply(m); err == nil {
				err = c.compile(changed)
			}
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.name, err))
		}
	}
	return errors.Join(problems...)
}

// checker compiles packages in this process, as far as their types.
type checker struct {
	packages map[string]*listed // by directory
	imports  types.Importer
	fset     *token.FileSet
	parsed   map[string]*ast.File // by name
	tests    map[string]bool      // directory and name
}

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Module                  *struct{ GoVersion string }
}

// newChecker has go list compile what the packages of the mutants need.
func newChecker(ctx context.Context, root string, list []mutant) (*checker, error) {
	packages := map[string]bool{}
	for _, m := range list {
		for _, e := range m.edits {
			packages["./"+packageOf(e.in)] = true
		}
	}
	args := []string{"-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Module"}
	out, err := goList(ctx, root, append(args, slices.Sorted(maps.Keys(packages))...)...)
	if err != nil {
		return nil, err
	}
	c := &checker{packages: map[string]*listed{}, fset: token.NewFileSet(), parsed: map[string]*ast.File{}, tests: map[string]bool{}}
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		c.packages[p.Dir], exports[p.ImportPath] = &p, p.Export
	}
	c.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return c, c.readTests(root, list)
}

// goList returns what go list prints.
func goList(ctx context.Context, root string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	cmd.Dir = root
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, errs.Bytes())
	}
	return out, nil
}

// compile says what is wrong with the types of the packages that hold the changed files.
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
		conf := types.Config{Importer: c.imports, GoVersion: "go" + p.Module.GoVersion}
		if _, err := conf.Check(p.ImportPath, c.fset, files, nil); err != nil {
			return err
		}
	}
	return nil
}

// parse parses a file that changed, or returns the one that did not.
func (c *checker) parse(name string, changed map[string]string) (*ast.File, error) {
	if text, has := changed[name]; has {
		return parser.ParseFile(c.fset, name, text, parser.SkipObjectResolution)
	}
	if c.parsed[name] == nil {
		f, err := parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		c.parsed[name] = f
	}
	return c.parsed[name], nil
}

// readTests lists the tests of the packages that the mutants name.
func (c *checker) readTests(root string, list []mutant) error {
	read := map[string]bool{}
	for _, m := range list {
		pkg, _ := m.place()
		if read[pkg] {
			continue
		}
		read[pkg] = true
		names, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go"))
		if err != nil {
			return err
		}
		for _, name := range names {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, d := range f.Decls {
				if fn, is := d.(*ast.FuncDecl); is && strings.HasPrefix(fn.Name.Name, "Test") {
					c.tests[pkg+"."+fn.Name.Name] = true
				}
			}
		}
	}
	return nil
}

func (c *checker) testExists(m mutant) error {
	if m.test == "" { // clientsim torture finds it
		return nil
	}
	if pkg, name := m.place(); !c.tests[pkg+"."+name] {
		return fmt.Errorf("there is no %s.%s", pkg, name)
	}
	return nil
}
