package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mendImports adapts the imports of f to its new text: it adds the imports that the text needs, and
// blanks the imports that nothing uses.
func (s *source) mendImports(f *file, text string) (string, error) {
	if f.syntax == nil {
		return text, nil
	}
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, f.path, text, 0)
	if err != nil {
		return "", err
	}
	before, after := packagesUsed(f.syntax), packagesUsed(syntax)
	imported := map[string]bool{}
	for _, spec := range slices.Backward(syntax.Imports) { // from the end: earlier offsets stay valid
		name := importName(spec)
		imported[name] = true
		if before[name] && !after[name] {
			begin, end := fset.Position(spec.Pos()).Offset, fset.Position(spec.End()).Offset
			text = text[:begin] + "_ " + spec.Path.Value + text[end:]
		}
	}
	var needed strings.Builder
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if before[name] || imported[name] || s.decls[path.Dir(f.path)+"."+name] != nil {
			continue
		}
		from, known := s.imports[name]
		if !known {
			return "", fmt.Errorf("the new text in %s uses the package %s, which no file of the module imports", f.path, name)
		}
		needed.WriteString("; import " + name + " " + strconv.Quote(from))
	}
	end := fset.Position(syntax.Name.End()).Offset
	return text[:end] + needed.String() + text[end:], nil
}

// packagesUsed returns the names that may be packages in f: every x of x.y that f does not declare.
func packagesUsed(f *ast.File) map[string]bool {
	free := map[*ast.Ident]bool{}
	for _, ident := range f.Unresolved {
		free[ident] = true
	}
	used := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, is := n.(*ast.SelectorExpr); is {
			if x, is := sel.X.(*ast.Ident); is && free[x] {
				used[x.Name] = true
			}
		}
		return true
	})
	return used
}

var majorVersion = regexp.MustCompile(`^v\d+$`)

// importName returns the name under which a file uses an import. If the file sets no name, the name
// is the last part of the path.
func importName(spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	from := strings.Trim(spec.Path.Value, `"`)
	if majorVersion.MatchString(path.Base(from)) {
		from = path.Dir(from)
	}
	return path.Base(from)
}

// importPaths returns, for each name, the path that the module's files import most often under that
// name.
func (s *source) importPaths() map[string]string {
	count := map[string]map[string]int{}
	for _, f := range s.files {
		if f.syntax == nil {
			continue
		}
		for _, spec := range f.syntax.Imports {
			name := importName(spec)
			if count[name] == nil {
				count[name] = map[string]int{}
			}
			count[name][strings.Trim(spec.Path.Value, `"`)]++
		}
	}
	paths := map[string]string{}
	for name, n := range count {
		for _, from := range slices.Sorted(maps.Keys(n)) {
			if n[from] > n[paths[name]] {
				paths[name] = from
			}
		}
	}
	return paths
}
