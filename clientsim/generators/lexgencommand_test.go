package generators_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/lex"
	"github.com/google/go-cmp/cmp"
)

// notForCommand are the lexicons from which indigo's command lexgen makes no code.
var notForCommand = []string{"authFull.json", "authMessaging.json", "authRead.json", "streamConvoEvents.json"}

// withCBOR are the lexicons of records, whose code compiles only with the output of cbor-gen.
var withCBOR = []string{"device.json", "profile.json"}

// G17: indigo's command lexgen, which is older than its package lexgen, makes code that compiles from
// every lexicon, except those that the page of generators names.
func TestIndigoCommand(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles")
	}
	paths, err := filepath.Glob(filepath.Join(moduleRoot(t), "lexicons/blue/catbird/mls/*.json"))
	if err != nil || len(paths) < 50 {
		t.Fatalf("lexicons %v, %v", paths, err)
	}
	dir := t.TempDir()
	var failed []string
	for _, path := range paths {
		if err := runCommand(t, dir, path, paths); err != nil {
			t.Log(err)
			failed = append(failed, filepath.Base(path))
		}
	}
	if diff := cmp.Diff(notForCommand, failed); diff != "" {
		t.Errorf("lexicons that it does not take (-want +got):\n%s", diff)
	}
	if out, err := compileCommand(t, dir, "mlsdevice.go", "mlsprofile.go"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := compileCommand(t, dir); err == nil || !strings.Contains(out, "missing method MarshalCBOR") {
		t.Errorf("with the code of %q: %v\n%s", withCBOR, err, out)
	}
	page, err := os.ReadFile(filepath.Join(moduleRoot(t), "docs/clients/MLS-LIBRARIES.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"auth*.json", "streamConvoEvents.json"}, withCBOR...) {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("the page does not name %s", name)
		}
	}
}

// runCommand generates the code of one lexicon, as the command does. The others are there for its
// references.
func runCommand(t *testing.T, dir, path string, paths []string) (err error) {
	t.Helper()
	var one, others []*lex.Schema
	for _, p := range paths {
		s, err := lex.ReadSchema(p) // a run changes schemas
		switch {
		case err != nil && p == path:
			return err
		case err != nil:
		case p == path:
			one = append(one, s)
		default:
			others = append(others, s)
		}
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: panic: %v", filepath.Base(path), r)
		}
	}()
	return lex.Run(one, others, []lex.Package{{GoPackage: "bluecatbird", Prefix: "blue.catbird", Outdir: dir,
		Import: "mlsd/" + generatedFolder}})
}

// compileCommand compiles the code in a folder, without one file, and returns what the compiler says.
func compileCommand(t *testing.T, dir string, without ...string) (out string, err error) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) < 50 {
		t.Fatalf("generated %v, %v", files, err)
	}
	overlay := map[string]map[string]string{"Replace": {}}
	for _, file := range files {
		if !slices.Contains(without, filepath.Base(file)) {
			overlay["Replace"][filepath.Join(moduleRoot(t), generatedFolder, filepath.Base(file))] = file
		}
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(list, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", list, "./"+generatedFolder)
	cmd.Dir = moduleRoot(t)
	text, err := cmd.CombinedOutput()
	return string(text), err
}
