package steps_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"mlsd/clientsim/steps"
)

var errStep = errors.New("a step failed")

func one(err error) (int, error)         { return 1, err }
func two(err error) (int, string, error) { return 1, "2", err }

func TestFirstFailureEnds(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]func(error){
		"Check": steps.Check,
		"Must":  func(err error) { steps.Must(one(err)) },
		"Must2": func(err error) { steps.Must2(two(err)) },
	} {
		reached := false
		play := func(err error) error {
			return steps.Attempt(func() {
				step(err)
				reached = true
			})
		}
		if err := play(errStep); !errors.Is(err, errStep) || reached {
			t.Errorf("%s: %v, and the next step was reached: %t", name, err, reached)
		}
		if err := play(nil); err != nil || !reached {
			t.Errorf("%s without an error: %v, and the next step was reached: %t", name, err, reached)
		}
	}
	if err := steps.Attempt(func() { steps.Fail("with %w", errStep) }); !errors.Is(err, errStep) {
		t.Errorf("Fail: %v", err)
	}
}

// CatchIn says what the function was doing if a step fails, but not if the function returns an
// error.
func TestCatchIn(t *testing.T) {
	t.Parallel()
	do := func(step, returned error) (err error) {
		defer steps.CatchIn(&err, "open %s", "it")
		steps.Check(step)
		return returned
	}
	if err := do(errStep, nil); !errors.Is(err, errStep) || err.Error() != "open it: a step failed" {
		t.Errorf("a step fails: %v", err)
	}
	if err := do(nil, errStep); err != errStep {
		t.Errorf("an error is returned: %v", err)
	}
	if err := do(nil, nil); err != nil {
		t.Errorf("nothing fails: %v", err)
	}
}

// A panic of the program's own is not a failed step.
func TestOtherPanicsGoOn(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("the panic has ended in Attempt")
		}
	}()
	_ = steps.Attempt(func() { panic("a mistake") })
}

// Each makes all calls, at most lanes at a time, and ends the steps if a call fails.
func TestEach(t *testing.T) {
	t.Parallel()
	const lanes, n = 3, 20
	var running, most, done atomic.Int64
	err := steps.Attempt(func() {
		steps.Each(lanes, n, func(int) {
			if now := running.Add(1); now > most.Load() {
				most.Store(now)
			}
			done.Add(1)
			running.Add(-1)
		})
	})
	if err != nil || done.Load() != n || most.Load() > lanes {
		t.Errorf("%d of %d calls, %d at a time: %v", done.Load(), n, most.Load(), err)
	}
	err = steps.Attempt(func() { steps.AtOnce(func() {}, func() { steps.Check(errStep) }) })
	if !errors.Is(err, errStep) {
		t.Errorf("one of two fails: %v", err)
	}
}

// Every failure is caught: a function that returns an error, or runs in a goroutine, catches the
// failures of its own steps.
func TestFailuresAreCaught(t *testing.T) {
	t.Parallel()
	checked := 0
	check := func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.Contains(path, "testdata") ||
			filepath.Base(filepath.Dir(path)) == "steps" {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			body, mustCatch := catching(n)
			if mustCatch && failing(body) {
				checked++
				if !catches(body) {
					t.Errorf("%s: its steps fail, and nothing catches that", files.Position(body.Pos()))
				}
			}
			return true
		})
		return nil
	}
	if err := errors.Join(filepath.WalkDir("..", check), filepath.WalkDir("../../cmd/mlsd-dev", check)); err != nil {
		t.Fatal(err)
	}
	if checked < 50 {
		t.Errorf("only %d functions were checked", checked)
	}
}

// catching returns the body of a function that must catch failures.
func catching(n ast.Node) (*ast.BlockStmt, bool) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return n.Body, n.Body != nil && returnsError(n.Type)
	case *ast.FuncLit:
		return n.Body, returnsError(n.Type)
	case *ast.GoStmt:
		if f, ok := n.Call.Fun.(*ast.FuncLit); ok {
			return f.Body, true
		}
	case *ast.CallExpr:
		if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" && len(n.Args) == 1 {
			if f, ok := n.Args[0].(*ast.FuncLit); ok {
				return f.Body, true
			}
		}
	}
	return nil, false
}

func returnsError(f *ast.FuncType) bool {
	if f.Results == nil {
		return false
	}
	last, ok := f.Results.List[len(f.Results.List)-1].Type.(*ast.Ident)
	return ok && last.Name == "error"
}

// failing reports whether a body has a step of its own that can fail, outside of functions within
// it.
func failing(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if _, ok := n.(*ast.FuncLit); ok {
			return false
		}
		if call, ok := n.(*ast.CallExpr); ok {
			found = found || named(call.Fun, "Check", "Fail", "Must", "Must2", "Each", "AtOnce")
		}
		return true
	})
	return found
}

func named(f ast.Expr, names ...string) bool {
	for _, name := range names {
		if id, ok := f.(*ast.Ident); ok && id.Name == name {
			return true
		}
	}
	return false
}

func catches(body *ast.BlockStmt) bool {
	d, ok := body.List[0].(*ast.DeferStmt)
	return ok && named(d.Call.Fun, "Catch", "CatchIn")
}
