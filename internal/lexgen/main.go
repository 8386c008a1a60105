// Command lexgen turns the lexicons into package mlsapi, and guards what has
// landed.
//
//	go run ./internal/lexgen         write api/mlsapi/*_gen.go
//	go run ./internal/lexgen -land   record the lexicons as the landed contract
//
// # Landing
//
// lexicons/testdata/landed.json is the contract that clients may have been built
// against: every lexicon of the last landed commit in one file. A test demands
// that it equal the lexicons, so no change of a lexicon escapes the question
// whether it breaks a client; -land answers it, and refuses to record a breaking
// one. A second test compares the lexicons with every state of that file in git's
// history, so that editing the file by hand does not get around the first: a
// fresh clone whose HEAD is the change under test still has the commits before it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"mlsd/lexicons"
)

// Where things are, from the module's root.
const (
	outDir     = "api/mlsapi"
	landedPath = "lexicons/testdata/landed.json"
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
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	set, err := load(lexicons.Files)
	if err != nil {
		return err
	}
	if *land {
		return landSnapshot(set, filepath.Join(root, landedPath), out)
	}
	files, err := generate(set)
	if err != nil {
		return err
	}
	return write(filepath.Join(root, outDir), files)
}

// moduleRoot finds the module, so that go generate may start anywhere in it.
func moduleRoot() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(mod))), nil
}

// write makes the generated files of dir exactly these.
func write(dir string, files map[string][]byte) error {
	old, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return err
	}
	for _, path := range old {
		if _, keep := files[filepath.Base(path)]; !keep {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
