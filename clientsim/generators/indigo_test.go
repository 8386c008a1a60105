package generators_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/lexicon"
	"github.com/bluesky-social/indigo/lex/lexgen"
	_ "github.com/bluesky-social/indigo/lex/util" // go.mod must have what generated code imports

	"mlsd/lexicons"
)

// generatedFolder is where the generated package is, from the module's root. It exists only in the
// overlay of the build.
const generatedFolder = "clientsim/generators/testdata/indigo/bluecatbird"

// buildIndigo generates Go code and compiles it with testdata/indigo.
func buildIndigo(t *testing.T, dir string) []string {
	t.Helper()
	root := moduleRoot(t)
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for name, code := range generateIndigo(t) {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, code, 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(root, generatedFolder, name)] = file
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	file, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "indigo")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, root, "go", "build", "-overlay", file, "-o", binary, "./clientsim/generators/testdata/indigo")
	return []string{binary}
}

// generateIndigo generates the package: a file per lexicon, and a table of all functions and
// events, so that a program can choose one by its name.
func generateIndigo(t *testing.T) map[string][]byte {
	t.Helper()
	catalog := lexicon.NewBaseCatalog()
	if err := catalog.LoadEmbedFS(lexicons.Files); err != nil {
		t.Fatal(err)
	}
	names, err := fs.Glob(lexicons.Files, lexicons.Pattern)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	var functions, events strings.Builder
	for _, name := range names {
		data, err := lexicons.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sf := new(lexicon.SchemaFile)
		if err := json.Unmarshal(data, sf); err != nil {
			t.Fatal(err)
		}
		if err := sf.FinishParse(); err != nil {
			t.Fatal(err)
		}
		flat, err := lexgen.FlattenSchemaFile(sf)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var code bytes.Buffer
		gen := &lexgen.CodeGenerator{Config: lexgen.NewGenConfig(), Lex: flat, Cat: catalog, Out: &code}
		if err := gen.WriteLexicon(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		files[gen.FileName()] = formatted(t, name, withoutUnusedImports(code.String()))
		base := exported(sf.ID[strings.LastIndex(sf.ID, ".")+1:])
		switch sf.Defs["main"].Inner.(type) {
		case lexicon.SchemaQuery, lexicon.SchemaProcedure:
			fmt.Fprintf(&functions, "%q: Mls%s,\n", sf.ID, base)
		}
		for def := range sf.Defs {
			if strings.HasSuffix(def, "Event") {
				fmt.Fprintf(&events, "%q: func() any { return new(Mls%s_%s) },\n", sf.ID+"#"+def, base, exported(def))
			}
		}
	}
	files["table.go"] = formatted(t, "the table",
		"package bluecatbird\n\nvar Functions = map[string]any{\n"+functions.String()+
			"}\n\nvar Events = map[string]func() any{\n"+events.String()+"}\n")
	return files
}

func exported(name string) string { return strings.ToUpper(name[:1]) + name[1:] }

// withoutUnusedImports removes the imports that a generated file does not use. The generator leaves
// this to its caller.
func withoutUnusedImports(code string) string {
	head, body, _ := strings.Cut(code, "\n)\n")
	var kept []string
	for _, line := range strings.Split(head, "\n") {
		if path, quoted := strings.CutSuffix(line, `"`); quoted {
			name, _, named := strings.Cut(strings.TrimSpace(path), " ")
			if !named {
				name = path[strings.LastIndexAny(path, `/"`)+1:]
			}
			if !regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(body) { // not the end of a sentence
				continue
			}
		}
		kept = append(kept, line)
	}
	return strings.Join(kept, "\n") + "\n)\n" + body
}

func formatted(t *testing.T, name, code string) []byte {
	t.Helper()
	out, err := format.Source([]byte(code))
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, code)
	}
	return out
}
