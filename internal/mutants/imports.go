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
	for _, spec := range slices.Backward(syntax.Imports) { // from the end: earlier offsets stay valid
		name := importName(spec)
		if before[name] && !after[name] {
			begin := fset.Position(spec.Pos()).Offset
			text = text[:begin] + "_ " + strings.TrimPrefix(text[begin:], name+" ")
		}
		delete(after, name)
	}
	var needed strings.Builder
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if before[name] || s.decls[path.Dir(f.path)+"."+name] != nil {
			continue
		}
		from := s.importPath(name)
		if from == "" {
			return "", fmt.Errorf("the new text in %s uses the package %s, which no file of the module imports", f.path, name)
		}
		needed.WriteString("; import " + name + " " + strconv.Quote(from))
	}
	end := fset.Position(syntax.Name.End()).Offset
	return text[:end] + needed.String() + text[end:], nil
}

// packagesUsed returns the names that may be packages in f: every x of x.y that f does not declare.
func packagesUsed(f *ast.File) map[string]bool {
	used := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, is := n.(*ast.SelectorExpr); is {
			if x, is := sel.X.(*ast.Ident); is && slices.Contains(f.Unresolved, x) {
				used[x.Name] = true
			}
		}
		return true
	})
	return used
}

var majorVersion = regexp.MustCompile(`/v\d+$`)

// importName returns the name under which a file uses an import. If the file sets no name, the name
// is the last part of the path.
func importName(spec *ast.ImportSpec) string {
	if spec.Name != nil {
		return spec.Name.Name
	}
	return baseOf(strings.Trim(spec.Path.Value, `"`))
}

func baseOf(from string) string { return path.Base(majorVersion.ReplaceAllString(from, "")) }

// importPath returns the path of a package's name that most files of the module import, or "".
func (s *source) importPath(name string) (most string) {
	for _, from := range slices.Sorted(maps.Keys(s.imports)) {
		if baseOf(from) == name && s.imports[from] > s.imports[most] {
			most = from
		}
	}
	return most
}
