package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// source is the text of the module without its tests. It is read once.
type source struct {
	root  string
	decls map[string][]declaration // by name: messages.Log.Send, migrations/000001_core.up.sql
}

// declaration is the part of a file that declares one name.
type declaration struct {
	file       *file
	begin, end int
}

// file is a Go or an SQL file.
type file struct {
	path string // below root, with slashes
	text string
	code string // text with spaces instead of comments
}

// leftOut matches the directories without source, and this package.
var leftOut = regexp.MustCompile(`(^|/)([._][^/]*|testdata)$|^internal/mutants$`)

// readSource reads the Go and SQL files below root. It leaves out tests and this package.
func readSource(root string) (*source, error) {
	s := &source{root, map[string][]declaration{}}
	module := os.DirFS(root)
	return s, fs.WalkDir(module, ".", func(name string, d fs.DirEntry, err error) error {
		base := path.Base(name)
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && leftOut.MatchString(name):
			return fs.SkipDir
		case d.IsDir(), strings.HasSuffix(base, "_test.go"), path.Ext(base) != ".go" && path.Ext(base) != ".sql":
			return nil
		}
		text, err := fs.ReadFile(module, name)
		if err != nil {
			return err
		}
		return s.add(name, string(text))
	})
}

var sqlComment = regexp.MustCompile(`--[^\n]*`)

// add puts a file and its declarations into s.
func (s *source) add(name, text string) error {
	f := &file{path: name, text: text}
	code := []byte(text)
	blank := func(begin, end int) {
		for i := begin; i < end; i++ {
			code[i] = ' '
		}
	}
	blankSQL := func(begin, end int) {
		for _, at := range sqlComment.FindAllStringIndex(text[begin:end], -1) {
			blank(begin+at[0], begin+at[1])
		}
	}
	defer func() { f.code = string(code) }()
	if path.Ext(name) == ".sql" {
		blankSQL(0, len(text))
		s.decls[name] = []declaration{{f, 0, len(text)}}
		return nil
	}
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		return err
	}
	span := func(n ast.Node) (begin, end int) { return fset.Position(n.Pos()).Offset, fset.Position(n.End()).Offset }
	for _, group := range syntax.Comments {
		blank(span(group))
	}
	declare := func(n string, node ast.Node) {
		begin, end := span(node)
		n = path.Dir(name) + "." + n
		s.decls[n] = append(s.decls[n], declaration{f, begin, end})
	}
	ast.Inspect(syntax, func(n ast.Node) bool {
		if text, is := n.(*ast.BasicLit); is && text.Value[0] == '`' {
			begin, end := span(text)
			blankSQL(begin, end-1)
		}
		return true
	})
	for _, d := range syntax.Decls {
		if d, is := d.(*ast.FuncDecl); is {
			declare(receiver(d)+d.Name.Name, d)
			continue
		}
		for _, spec := range d.(*ast.GenDecl).Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				declare(spec.Name.Name, spec)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					declare(name.Name, spec)
				}
			}
		}
	}
	return nil
}

// receiver returns the name of a method's type and a dot, without a star or type parameters.
func receiver(d *ast.FuncDecl) (name string) {
	if d.Recv != nil {
		ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
			if ident, is := n.(*ast.Ident); is && name == "" {
				name = ident.Name + "."
			}
			return name == ""
		})
	}
	return name
}

// line returns the place of an offset in the file, and the text of its line.
func (f *file) line(offset int) string {
	n := strings.Count(f.text[:offset], "\n")
	return fmt.Sprintf("%s:%d: %s", f.path, n+1, strings.TrimSpace(strings.Split(f.text, "\n")[n]))
}

// absolute returns the name of a file of the module for the go command.
func (s *source) absolute(name string) string { return filepath.Join(s.root, filepath.FromSlash(name)) }
