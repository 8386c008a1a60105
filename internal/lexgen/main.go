// Command lexgen generates code from the lexicons, and checks that no change of a lexicon breaks a
// client.
//
//	go run ./internal/lexgen               write api/mlsapi/*_gen.go and internal/nsid/*_gen.go
//	go run ./internal/lexgen -lang swift   write the types of the Swift client
//	go run ./internal/lexgen -lang docs    write docs/clients/api and docs/clients/ENCODINGS.md
//	go run ./internal/lexgen -lang scopes  write the methods of the permission sets
//	go run ./internal/lexgen -land         record the lexicons as the landed contract
//
// # Landing
//
// internal/lexgen/landed.json is the contract against which clients may have been built: every
// lexicon of the last landed commit, in one file. A test checks that the file equals the lexicons,
// so every change of a lexicon needs -land, which refuses to record a breaking change. A second
// test compares the lexicons with every version of the file in git's history, so that it also finds
// manual edits of the file.
package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"mlsd/lexicons"
)

// Paths from the module's root.
const (
	apiDir     = "api/mlsapi"
	nsidDir    = "internal/nsid"
	landedPath = "internal/lexgen/landed.json"
	oldLanded  = "lexicons/testdata/landed.json" // an earlier path of the file, for its history
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lexgen:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("lexgen", flag.ContinueOnError)
	land := flags.Bool("land", false, "record the lexicons as the landed contract")
	lang := flags.String("lang", "go", "write the code of this language: go, swift; or docs, or scopes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	into, ok := languages[*lang]
	if !ok {
		return fmt.Errorf("there is no generator for the language %q", *lang)
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	if *land {
		all, err := loadAll(lexicons.Files)
		if err != nil {
			return err
		}
		return landSnapshot(all, filepath.Join(root, landedPath), out)
	}
	set, err := load(lexicons.Files)
	if err != nil {
		return err
	}
	files, err := into.generate(set)
	if err != nil {
		return err
	}
	return into.write(root, files)
}

// language is a language for which code is generated.
type language struct {
	generate func(schemas) (map[string][]byte, error)
	// patterns match all generated files of the language, from the module's root.
	patterns []string
}

var languages = map[string]language{
	"go":     {generate, []string{path.Join(apiDir, "*"+suffix), path.Join(nsidDir, "*"+suffix)}},
	"swift":  {generateSwift, []string{path.Join(swiftDir, "*"+swiftSuffix)}},
	"docs":   {generateReference, []string{path.Join(referenceDir, "*.md"), path.Join(clientDocs, "ENCODINGS.md")}},
	"scopes": {generateScopes, []string{path.Join("lexicons", path.Dir(lexicons.Pattern), "auth*.json")}},
}

// moduleRoot finds the module's root, so that go generate may start anywhere in the module.
func moduleRoot() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(mod))), nil
}

// generated lists the existing generated files, by their paths in the module.
func (l language) generated(root fs.FS) ([]string, error) {
	var all []string
	for _, pattern := range l.patterns {
		files, err := fs.Glob(root, pattern)
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	return all, nil
}

// write stores the files and removes generated files that are no longer wanted.
func (l language) write(root string, files map[string][]byte) error {
	old, err := l.generated(os.DirFS(root))
	if err != nil {
		return err
	}
	for _, name := range old {
		if _, keep := files[name]; !keep {
			if err := os.Remove(filepath.Join(root, name)); err != nil {
				return err
			}
		}
	}
	for name, content := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
