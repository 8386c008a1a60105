package lexicons_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/lexicon"
	"github.com/bluesky-social/indigo/lex/lexlint"

	"mlsd/lexicons"
)

// files parses every lexicon by NSID.
func files(t *testing.T) map[string]*lexicon.SchemaFile {
	t.Helper()
	names, err := fs.Glob(lexicons.Files, lexicons.Pattern)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*lexicon.SchemaFile{}
	for _, name := range names {
		data, err := lexicons.Files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sf := new(lexicon.SchemaFile)
		if err := json.Unmarshal(data, sf); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := sf.FinishParse(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if lexicons.Path(sf.ID) != name {
			t.Errorf("%s defines %s", name, sf.ID)
		}
		out[sf.ID] = sf
	}
	return out
}

// subscriptionErrors are the errors that subscriptions declare, by NSID: package lexicon drops
// them.
func subscriptionErrors(t *testing.T) map[string][]lexicon.SchemaError {
	t.Helper()
	out := map[string][]lexicon.SchemaError{}
	for nsid, sf := range files(t) {
		if _, ok := sf.Defs["main"].Inner.(lexicon.SchemaSubscription); !ok {
			continue
		}
		data, err := lexicons.Files.ReadFile(lexicons.Path(nsid))
		if err != nil {
			t.Fatal(err)
		}
		var raw struct {
			Defs struct {
				Main struct{ Errors []lexicon.SchemaError }
			}
		}
		if err := json.Unmarshal(data, &raw); err != nil {
			t.Fatal(err)
		}
		out[nsid] = raw.Defs.Main.Errors
	}
	return out
}

// lintAllowed are lexlint warnings that the contract asks for.
var lintAllowed = map[string]string{
	"unlimited-string": "frozen strings have no limit in the contract, and adding one would tighten them; the body " +
		"limit bounds them",
	"unlimited-bytes": "as unlimited-string",
	"large-string":    "KeyPackages travel as base64 text",
	"large-bytes":     "the limits of MLS objects; nothing here is a repository record",
}

func TestLint(t *testing.T) {
	t.Parallel()
	for nsid, sf := range files(t) {
		for _, issue := range lexlint.LintSchemaFile(sf) {
			if issue.LintLevel == "error" || lintAllowed[issue.LintName] == "" {
				t.Errorf("%s: %s %s: %s", nsid, issue.LintLevel, issue.LintName, issue.Message)
			}
		}
	}
}

func TestCatalogLoads(t *testing.T) {
	t.Parallel()
	catalog := lexicon.NewBaseCatalog()
	if err := catalog.LoadEmbedFS(lexicons.Files); err != nil {
		t.Fatal(err)
	}
	for nsid, sf := range files(t) {
		walk(sf, func(def lexicon.SchemaDef) {
			ref, ok := def.Inner.(lexicon.SchemaRef)
			if !ok {
				return
			}
			name := ref.Ref
			if strings.HasPrefix(name, "#") {
				name = nsid + name
			}
			if _, err := catalog.Resolve(name); err != nil {
				t.Errorf("%s: %v", nsid, err)
			}
		})
	}
}

// M7: tools such as goat lex lint take every JSON file below the folder for a lexicon.
func TestOnlyLexicons(t *testing.T) {
	t.Parallel()
	all := files(t)
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".json") {
			return err
		}
		nsid := strings.ReplaceAll(strings.TrimSuffix(path, ".json"), "/", ".")
		if all[nsid] == nil {
			t.Errorf("%s is no lexicon at its place", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TypeScript generators refuse inline objects, which indigo accepts.
func TestNoInlineObjects(t *testing.T) {
	t.Parallel()
	for nsid, sf := range files(t) {
		walk(sf, func(def lexicon.SchemaDef) {
			if _, ok := def.Inner.(lexicon.SchemaObject); ok {
				t.Errorf("%s has an inline object", nsid)
			}
		})
	}
}

// walk visits what stands inside bodies, params and definitions.
func walk(sf *lexicon.SchemaFile, visit func(lexicon.SchemaDef)) {
	var inside func(def lexicon.SchemaDef)
	properties := func(props map[string]lexicon.SchemaDef) {
		for _, def := range props {
			visit(def)
			inside(def)
		}
	}
	inside = func(def lexicon.SchemaDef) {
		switch s := def.Inner.(type) {
		case lexicon.SchemaUnion:
			for _, ref := range s.Refs {
				visit(lexicon.SchemaDef{Inner: lexicon.SchemaRef{Ref: ref}})
			}
		case lexicon.SchemaArray:
			visit(s.Items)
			inside(s.Items)
		case lexicon.SchemaObject:
			properties(s.Properties)
		}
	}
	body := func(b *lexicon.SchemaBody) {
		if b == nil || b.Schema == nil {
			return
		}
		if _, ok := b.Schema.Inner.(lexicon.SchemaRef); ok {
			visit(*b.Schema)
		}
		inside(*b.Schema)
	}
	for _, def := range sf.Defs {
		switch s := def.Inner.(type) {
		case lexicon.SchemaQuery:
			if s.Parameters != nil {
				properties(s.Parameters.Properties)
			}
			body(s.Output)
		case lexicon.SchemaProcedure:
			body(s.Input)
			body(s.Output)
		case lexicon.SchemaSubscription:
			if s.Parameters != nil {
				properties(s.Parameters.Properties)
			}
			inside(lexicon.SchemaDef{Inner: s.Message.Schema})
		default:
			inside(def)
		}
	}
}
