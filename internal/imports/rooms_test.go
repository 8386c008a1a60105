package imports_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// rooms are the imports between top-level folders: from, to, and the packages that import.
type rooms map[string]map[string][]string

// aboveInternal are the packages of internal that may import other folders: generators and helpers
// of tests.
var aboveInternal = []string{"internal/lexgen", "internal/lexgen/examples", "internal/mlstest", "internal/pgtest"}

// between returns the imports between top-level folders. Those of tests do not count.
func between(pkgs []pkg) rooms {
	found := rooms{}
	for _, p := range pkgs {
		if slices.Contains(aboveInternal, p.name()) {
			continue
		}
		from, _, _ := strings.Cut(p.name(), "/")
		for _, path := range p.Imports {
			name, ours := strings.CutPrefix(path, module+"/")
			to, _, _ := strings.Cut(name, "/")
			if !ours || to == from {
				continue
			}
			if found[from] == nil {
				found[from] = map[string][]string{}
			}
			found[from][to] = append(found[from][to], p.name()+" imports "+name)
		}
	}
	return found
}

// way returns the imports by which a folder imports itself, on a shortest way; nil if it does not.
func (r rooms) way(folder string) []string {
	reached := map[string][]string{} // the imports that lead to a folder
	for next := []string{folder}; len(next) > 0; next = next[1:] {
		for _, to := range slices.Sorted(maps.Keys(r[next[0]])) {
			way := append(slices.Clip(reached[next[0]]), r[next[0]][to][0])
			if to == folder {
				return way
			}
			if reached[to] == nil {
				reached[to], next = way, append(next, to)
			}
		}
	}
	return nil
}

// cycle complains about a shortest cycle of folders. It returns "" if there is none.
func (r rooms) cycle() string {
	var shortest []string
	for _, folder := range slices.Sorted(maps.Keys(r)) {
		if way := r.way(folder); way != nil && (shortest == nil || len(way) < len(shortest)) {
			shortest = way
		}
	}
	if shortest == nil {
		return ""
	}
	return strings.Join(shortest, ", ") + ". Folders import one way. Either move what the lower folder needs into it, " +
		"as package outbox keeps what a transaction leaves for push and events to do; or let the lower folder declare a " +
		"function or a small interface, and let node pass it in, as convos.Purge"
}

func TestFoldersImportOneWay(t *testing.T) {
	t.Parallel()
	found := between(list(t, "./..."))
	if len(found) < 12 {
		t.Fatalf("only %d folders import others", len(found))
	}
	if c := found.cycle(); c != "" {
		t.Error(c)
	}
}

// upwards complains about the imports of internal from other folders.
func (r rooms) upwards() (complaints []string) {
	for _, to := range slices.Sorted(maps.Keys(r["internal"])) {
		for _, imports := range r["internal"][to] {
			complaints = append(complaints, imports+". A package of internal is a tool without a table of the domain, and "+
				"imports only internal. Move the package to the folder that it belongs to, or pass in what it needs")
		}
	}
	return complaints
}

func TestInternalImportsNothingAbove(t *testing.T) {
	t.Parallel()
	for _, c := range between(list(t, "./...")).upwards() {
		t.Error(c)
	}
}

// Both rules notice a planted import.
func TestPlantedImports(t *testing.T) {
	t.Parallel()
	good := []pkg{
		{ImportPath: "mlsd/api", Imports: []string{"fmt", "mlsd/convos", "mlsd/messages"}},
		{ImportPath: "mlsd/convos", Imports: []string{"mlsd/convos/disputes", "mlsd/messages", "mlsd/internal/worker"}},
		{ImportPath: "mlsd/convos/disputes", Imports: []string{"mlsd/messages"}},
		{ImportPath: "mlsd/internal/pgtest", Imports: []string{"mlsd/migrations"}},
	}
	for _, tc := range []struct{ pkg, imports, cycle, upwards string }{ // beginnings of the complaints
		{pkg: "messages", imports: "idem"},
		{pkg: "messages", imports: "api", cycle: "api imports messages, messages imports api. "},
		{pkg: "messages/log", imports: "convos/disputes",
			cycle: "convos imports messages, messages/log imports convos/disputes. "},
		{pkg: "internal/limit", imports: "mls", upwards: "internal/limit imports mls. "},
	} {
		t.Run(tc.pkg+" imports "+tc.imports, func(t *testing.T) {
			t.Parallel()
			planted := pkg{ImportPath: "mlsd/" + tc.pkg, Imports: []string{"mlsd/" + tc.imports}}
			r := between(append(slices.Clip(good), planted))
			if got := r.cycle(); !strings.HasPrefix(got, tc.cycle) || (got == "") != (tc.cycle == "") {
				t.Errorf("cycle %q, want %q…", got, tc.cycle)
			}
			got := strings.Join(r.upwards(), "\n")
			if !strings.HasPrefix(got, tc.upwards) || (got == "") != (tc.upwards == "") {
				t.Errorf("upwards %q, want %q…", got, tc.upwards)
			}
		})
	}
}
