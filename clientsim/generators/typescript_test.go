package generators_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"mlsd/lexicons"
)

// buildTypeScript returns a function that generates TypeScript and compiles it with one of the
// programs in typescript. The compiler checks all types.
func buildTypeScript(program string) func(*testing.T, string) []string {
	return func(t *testing.T, dir string) []string {
		t.Helper()
		packages, err := filepath.Abs(os.Getenv(typescriptFolder))
		if err != nil {
			t.Fatal(err)
		}
		modules := filepath.Join(packages, "node_modules")
		if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"package.json", "tsconfig.json", program + ".ts"} {
			data, err := os.ReadFile(filepath.Join("typescript", name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.CopyFS(filepath.Join(dir, "lexicons"), lexicons.Files); err != nil {
			t.Fatal(err)
		}
		generate := []string{"node", filepath.Join(modules, "@atproto/lex/bin/lex"), "build", "--lexicons", "lexicons",
			"--out", "generated"}
		if program == "lexcli" {
			names, err := fs.Glob(lexicons.Files, lexicons.Pattern)
			if err != nil {
				t.Fatal(err)
			}
			generate = []string{"node", filepath.Join(modules, "@atproto/lex-cli/bin.js"), "gen-api", "--yes", "generated"}
			for _, name := range names {
				lexicon, err := lexicons.Files.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Contains(lexicon, []byte(`"type": "record"`)) { // it would need lexicons of com.atproto.repo
					generate = append(generate, filepath.Join("lexicons", name))
				}
			}
		}
		run(t, dir, generate...)
		run(t, dir, "node", filepath.Join(modules, "typescript/bin/tsc"), "--project", ".")
		return []string{"node", filepath.Join(dir, "compiled", program+".js")}
	}
}
