// Command mutants shows that the tests notice known bugs (see api/idempotency_test.go). It puts
// each bug back into a copy of the source, one at a time, and runs the test that must fail. If the
// test still passes, that is a defect.
//
//	go run ./internal/mutants [name …]   puts these bugs back, or all
//	go run ./internal/mutants -check     only checks that each bug's place and test are there, and
//	                                     that it compiles: seconds
//	go run ./internal/mutants -list      lists the bugs and their tests
//	go run ./internal/mutants -rack      has clientsim torture look for the bugs of a second table
//
// The source itself does not change: the compiler reads the copy. Only the test that the entry
// names runs, once. Before that, all chosen tests must pass without a bug. All bugs take about a
// quarter of an hour on two cores.
//
// # The table
//
// An entry has a name, the test that catches the bug, and edits. An edit names a declaration, a
// text in it, and the new text:
//
//	{"convos.Commit", `Epoch: next`, `Epoch: c.epoch`}
//
// A declaration is a function, method, type, constant or variable. Its name is the directory of its
// package and its name in go doc: messages.Log.Send, internal/serviceauth.Verify. The name does not
// depend on the file, nor on whether a receiver is a pointer. An SQL file is one declaration. Its
// name is its path: migrations/000001_baseline.up.sql.
//
// The text must occur exactly once in the declaration. It is a piece of Go, or of the SQL in a
// string. It is compared word by word: spaces, line breaks and comments in the source are ignored,
// and so is a comma before a closing bracket. An ellipsis (…) matches any words. In the new text, an
// ellipsis stands for the replaced text. Use the shortest text that shows the bug, so that the rest
// may change freely. All edits of an entry are found in the unchanged source, and may not overlap.
//
// Imports are adapted, as goimports does it.
//
// The test must notice the bug every time. If two requests must meet, the test makes them meet:
// with a failpoint, a lock, or pgtest.HoldInserts. A random test has a fixed seed.
//
// The table has at most 150 bugs: those whose test alone guards a promise of docs/INVARIANTS.md, and
// at most three of a kind. A new bug replaces an old one of its kind.
//
// # After a refactoring
//
// Run -check. If the place of an entry has only moved, write the name of its new declaration into
// the entry. If the code is new, put the same bug into the new code. Then run the entry by its
// name: it must be caught. Delete an entry only if the behaviour that its test checks is removed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run does what the command line says.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	list := flags.Bool("list", false, "list the bugs and their tests")
	checkOnly := flags.Bool("check", false, "check that each bug's place is found and that it compiles; run no test")
	rack := flags.Bool("rack", false,
		"put the bugs of the second table into a server; clientsim torture must find each within 5 minutes")
	seed := flags.Uint64("seed", 1, "with -rack: the first seed of clientsim torture")
	if err := flags.Parse(args); err != nil {
		return err
	}
	table := mutants
	if *rack {
		table = rackBugs
	} else if *checkOnly && flags.NArg() == 0 {
		table = slices.Concat(mutants, rackBugs)
	}
	chosen, err := choose(table, flags.Args())
	if err != nil {
		return err
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	switch {
	case *list:
		for _, m := range chosen {
			if _, err := fmt.Fprintf(out, "%-29s  %s\n", m.name, m.test); err != nil {
				return err
			}
		}
		return nil
	case *checkOnly:
		if err := check(ctx, root, chosen); err != nil {
			return err
		}
		_, err := fmt.Fprintf(out, "%d of %d fit the source\n", len(chosen), len(chosen))
		return err
	case *rack:
		return judgeRack(ctx, root, chosen, *seed, out)
	}
	return judgeTests(ctx, root, chosen, out)
}

// choose returns the mutants of a table with these names, or all mutants.
func choose(table []mutant, names []string) ([]mutant, error) {
	if len(names) == 0 {
		return table, nil
	}
	var chosen []mutant
	for _, name := range names {
		i := slices.IndexFunc(table, func(m mutant) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no mutant is called %s", name)
		}
		chosen = append(chosen, table[i])
	}
	return chosen, nil
}

// place returns the package and the name of the mutant's test.
func (m mutant) place() (pkg, name string) {
	if pkg, name, other := strings.Cut(m.test, "."); other {
		return pkg, name
	}
	return "api", m.test
}

// moduleRoot returns the directory of go.mod, at or above the current directory.
func moduleRoot(ctx context.Context) (string, error) {
	mod, err := command(ctx, "", "go", "env", "GOMOD")
	return filepath.Dir(string(mod)), err
}
