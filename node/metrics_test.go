package node

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mlsd/internal/moduletest"
)

// Finding G1: no metric exists that nothing moves. Each field that is a metric is moved by a function of
// its package that is no constructor, and each exported method that moves one is called somewhere.
func TestMetricsMove(t *testing.T) {
	t.Parallel()
	metric := regexp.MustCompile(`^(Counter|Gauge|Histogram)(Vec)?$`)
	type field struct{ pkg, name string }
	fields, moved := map[field]bool{}, map[field]bool{}
	movers, called := map[string]bool{}, map[string]bool{} // methods, by name
	for path, file := range sources(t) {
		pkg := filepath.Dir(path)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.StructType:
				for _, f := range n.Fields.List {
					if typ := selected(f.Type); typ != nil && metric.MatchString(typ.Sel.Name) && isPrometheus(typ) {
						for _, name := range f.Names {
							fields[field{pkg, name.Name}] = true
						}
					}
				}
			case *ast.SelectorExpr:
				called[n.Sel.Name] = true
			}
			return true
		})
	}
	for path, file := range sources(t) {
		pkg := filepath.Dir(path)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || regexp.MustCompile(`^(New|new|begin$|register$)`).MatchString(f.Name.Name) {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && fields[field{pkg, s.Sel.Name}] {
					moved[field{pkg, s.Sel.Name}] = true
					if f.Recv != nil && f.Name.IsExported() {
						movers[f.Name.Name] = true
					}
				}
				return true
			})
		}
	}
	if len(fields) < 40 || len(movers) < 20 {
		t.Fatalf("only %d metrics and %d methods are found", len(fields), len(movers))
	}
	for f := range fields {
		if !moved[f] && f != (field{"internal/standby", "reads"}) && // its two series are fields
			f != (field{"features/relay", "configured"}) { // it is set where it is made
			t.Errorf("%s: nothing moves the metric %s", f.pkg, f.name)
		}
	}
	for name := range movers {
		if !called[name] {
			t.Errorf("nothing calls %s, which moves a metric", name)
		}
	}
}

// selected returns the selector of a type, which can be a pointer; nil: it has none.
func selected(typ ast.Expr) *ast.SelectorExpr {
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	s, _ := typ.(*ast.SelectorExpr)
	return s
}

func isPrometheus(s *ast.SelectorExpr) bool {
	pkg, ok := s.X.(*ast.Ident)
	return ok && pkg.Name == "prometheus"
}

// sources parses the module's files, without tests and the simulator, by their paths.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	all, set := map[string]*ast.File{}, token.NewFileSet()
	for name, text := range moduletest.Files(t, ".go") {
		folder, _, _ := strings.Cut(name, "/")
		if strings.HasSuffix(name, "_test.go") || folder == "clientsim" || folder == "clients" {
			continue
		}
		file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = file
	}
	return all
}
