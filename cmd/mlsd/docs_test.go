package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v3"

	"mlsd/api"
	"mlsd/internal/moduletest"
	"mlsd/operator"
)

const root = "../.."

// pages returns the documents by their paths from the module's root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := moduletest.Files(t, ".md")
	maps.DeleteFunc(found, func(path, _ string) bool { return strings.Contains(path, "testdata/") })
	return found
}

// The page about keys has the lifetime and the floor of every operation, and what the reference says
// of a repetition. Finding S5.
func TestLifetimesPage(t *testing.T) {
	repeat := regexp.MustCompile(`(?m)^\*\*Repeating it\.\*\* (.+)$`)
	all, lasts := pages(t), map[string][2]string{}
	says := map[string]string{}
	for path, page := range all {
		folder, file := filepath.Split(path)
		if found := repeat.FindStringSubmatch(page); folder == "docs/clients/api/" && found != nil {
			says[strings.TrimSuffix(file, ".md")] = found[1]
		}
	}
	hours := func(d time.Duration) string {
		return "`" + strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String()) + "`"
	}
	for _, o := range api.Lifetimes().All() {
		if o.NSID == "" || o.Life == 0 {
			continue
		}
		lasts[o.Name()] = [2]string{hours(o.Life), hours(o.Least.Life)}
		if says[o.Name()] == "" {
			says[o.Name()] = "Work of the server's own."
		}
	}
	rows := "| method | its record lasts | at least | a repetition |\n|---|---|---|---|\n"
	for _, name := range slices.Sorted(maps.Keys(says)) {
		life, kept := lasts[name]
		if !kept && strings.HasPrefix(says[name], "It changes nothing.") {
			continue
		}
		if !kept {
			life = [2]string{"–", "–"}
		}
		rows += fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, life[0], life[1], says[name])
	}
	if len(lasts) < 20 {
		t.Fatalf("only %d lifetimes", len(lasts))
	}
	moduletest.Table(t, "docs/IDEMPOTENCY.md", "Lifetimes, and the guard behind each", rows)
}

// Every link of a document leads to a file that exists, and to a heading that exists.
func TestLinks(t *testing.T) {
	t.Parallel()
	all := pages(t)
	if len(all) < 15 {
		t.Fatalf("only %d documents", len(all))
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for path, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[1], "https://") {
				continue
			}
			target, heading, _ := strings.Cut(m[1], "#")
			to := path
			if target != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(path), target))
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
				continue
			}
			if heading != "" && !slices.Contains(headings(all[to]), heading) {
				t.Errorf("%s links to %s: no such heading", path, m[1])
			}
		}
	}
}

// Finding G5: no table is cut by a blank line. Rows without a heading above them are not a table.
func TestTables(t *testing.T) {
	t.Parallel()
	rule := regexp.MustCompile(`^\|[ |:-]+$`)
	for path, text := range pages(t) {
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			row := strings.HasPrefix(line, "|") && (i == 0 || !strings.HasPrefix(lines[i-1], "|"))
			if row && (i+1 == len(lines) || !rule.MatchString(lines[i+1])) {
				t.Errorf("%s:%d: rows of a table without its heading", path, i+1)
			}
		}
	}
}

// Every file that a document names by its path exists.
func TestPaths(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile("`([a-z][\\w.-]*/[\\w./-]+\\.(?:go|sql|json|md|yml))`")
	for page, text := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s: %v", page, m[1], err)
			}
		}
	}
}

// What a document says is in a Go file, as in "`judge` in `messages/judge.go`", is declared there.
func TestNamesInFiles(t *testing.T) {
	t.Parallel()
	place := regexp.MustCompile("`(\\w+)`(?: and `(\\w+)`)? in `([a-z][\\w.-]*/[\\w./-]+\\.go)`")
	found := 0
	for page, text := range pages(t) {
		for _, m := range place.FindAllStringSubmatch(text, -1) {
			source, err := os.ReadFile(filepath.Join(root, m[3]))
			if err != nil {
				continue // TestPaths says so
			}
			for _, name := range m[1:3] {
				if name == "" {
					continue
				}
				found++
				declared := regexp.MustCompile(`(?m)^func (?:\(.*?\) )?` + name + `\b|^(?:type|var|const) ` + name +
					`\b|^\t` + name + `\s+[\w=*\[]`)
				if !declared.Match(source) {
					t.Errorf("%s: %s is not declared in %s", page, name, m[3])
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d names were found", found)
	}
}

// Every command that a document tells to type exists, with its subcommands and flags. Words in
// capitals stand for values.
func TestCommands(t *testing.T) {
	t.Parallel()
	tree := map[string]*cli.Command{"inspect": inspectCommand(io.Discard),
		"migrate": migrateCommand(io.Discard, io.Discard)}
	typed := regexp.MustCompile("(?:`| {4}|\\t)mlsd (inspect|migrate)( [^`\n#]*)?")
	word, checked := regexp.MustCompile(`[0-9A-Za-z_-]+`), 0
	for page, text := range pages(t) {
		for _, m := range typed.FindAllStringSubmatch(text, -1) {
			checked++
			command := tree[m[1]]
			known := flagNames(command)
			for _, w := range word.FindAllString(m[2], -1) {
				sub := command.Command(w)
				switch {
				case strings.ToUpper(w) == w && !strings.HasPrefix(w, "-"), '0' <= w[0] && w[0] <= '9': // a value, such as 24h
				case strings.HasPrefix(w, "--") && slices.Contains(known, w[2:]):
				case sub != nil:
					known = append(known, flagNames(sub)...)
				case slices.Contains(operator.WelcomeStates(), w): // values of --state
				default:
					t.Errorf("%s tells to type %q, and there is no %s", page, strings.TrimSpace(m[0]), w)
				}
			}
		}
	}
	if checked < 5 {
		t.Errorf("only %d commands in the documents", checked)
	}
}

// The pages for operators have a row for every command of mlsd admin and of mlsd inspect, with what
// --help says of it.
func TestCommandsPage(t *testing.T) {
	admin := adminCommand(nil, io.Discard)
	var rows strings.Builder
	for _, noun := range admin.Commands {
		for _, c := range noun.Commands {
			final := slices.ContainsFunc(operator.Methods(), func(m operator.Method) bool {
				return m.Noun == noun.Name && m.Verb == c.Name && m.Final
			})
			rows.WriteString(commandRow(noun.Name+" ", c, final))
		}
	}
	moduletest.Table(t, "docs/ADMIN.md", "Commands", "| command | does |\n|---|---|\n"+rows.String())
	rows.Reset()
	for _, c := range inspectCommand(io.Discard).Commands {
		rows.WriteString(commandRow("", c, false))
	}
	moduletest.Table(t, "docs/OPERATING.md", "mlsd inspect", "| question | answer |\n|---|---|\n"+rows.String())
	rows.Reset()
	all := append(migrateCommand(io.Discard, io.Discard).Commands, checkConfigCommand(io.Discard, io.Discard),
		backupCommand(io.Discard), restoreCommand(io.Discard, io.Discard), restoredCommand(io.Discard, io.Discard),
		reportKeyCommand(io.Discard).Commands[0], checkCommand(io.Discard, io.Discard), healthCommand(io.Discard))
	for i, c := range all {
		prefix := "mlsd "
		if i < len(migrateCommand(io.Discard, io.Discard).Commands) {
			prefix += "migrate "
		} else if c.Name == "new" {
			prefix += "report-key "
		}
		rows.WriteString(commandRow(prefix, c, false))
	}
	moduletest.Table(t, "docs/SETTINGS.md", "Commands", "| command | does |\n|---|---|\n"+rows.String())
}

// commandRow is a row about a command. After a final one there is no way back.
func commandRow(prefix string, c *cli.Command, final bool) string {
	typed, says := prefix+c.Name, c.Usage
	for _, f := range c.Flags {
		name := f.Names()[0]
		if _, onOff := f.(*cli.BoolFlag); onOff {
			typed += " [--" + name + "]"
		} else {
			typed += " [--" + name + " " + strings.ToUpper(name) + "]"
		}
	}
	if c.ArgsUsage != "" {
		typed += " " + c.ArgsUsage
	}
	if final {
		says += ". There is no way back"
	}
	return fmt.Sprintf("| `%s` | %s |\n", typed, says)
}

// flagNames returns the names of a command's flags.
func flagNames(c *cli.Command) (names []string) {
	for _, f := range c.Flags {
		names = append(names, f.Names()...)
	}
	return names
}

// blocks returns the fenced blocks of a page by their language.
func blocks(page string) map[string]string {
	found := map[string]string{}
	for _, m := range regexp.MustCompile("(?s)\n```(\\w+)\n(.*?)\n```\n").FindAllStringSubmatch(page, -1) {
		found[m[1]] += m[2] + "\n"
	}
	return found
}

// headings returns the anchors of a document's headings. A comment in an example is none.
func headings(text string) (anchors []string) {
	text = regexp.MustCompile("(?s)```.*?```").ReplaceAllString(text, "")
	dropped := regexp.MustCompile(`[^a-z0-9 _-]`)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		anchors = append(anchors, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return anchors
}

// Every row of the comparison and of the threats names what shows it, and every test that it names
// exists.
func TestComparisonPage(t *testing.T) {
	t.Parallel()
	shownByTests(t, "docs/COMPARISON.md", pages(t)["docs/COMPARISON.md"], 15)
	who, lies, _ := strings.Cut(pages(t)["docs/THREATS.md"], "\n## An operator who lies\n")
	shownByTests(t, "docs/THREATS.md", who, 15)
	shownByTests(t, "docs/THREATS.md", lies, 15)
}

// Every page of promises ends with the tests that would break with them. There is a row for each of
// its sections, and every test exists.
func TestPromisesAreShown(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for _, of := range []struct {
		path     string
		promises int
		none     []string // anchors of sections without a promise
	}{
		{"SECURITY.md", 17, []string{"report"}},
		{"docs/ACCOUNTS.md", 12, nil},
		{"docs/ERASURE.md", 10, nil},
		{"docs/LIMITS.md", 30, nil},
		{"docs/NETWORK.md", 13, nil},
		{"docs/TRANSPARENCY.md", 9, nil},
		{"docs/clients/SESSIONS.md", 10, nil},
		{"docs/operating/TRACES.md", 7, nil},
	} {
		page, shown, _ := strings.Cut(all[of.path], "\n## Shown by\n")
		shownByTests(t, of.path, shown, of.promises)
		for _, anchor := range headings(page)[1:] { // below the title
			if !slices.Contains(of.none, anchor) && !strings.Contains(shown, "(#"+anchor+")") {
				t.Errorf("%s says of no promise of #%s what shows it", of.path, anchor)
			}
		}
	}
}

// shownByTests expects at least so many rows in the tables of a text. The last column of each names
// tests, and those exist.
func shownByTests(t *testing.T, path, text string, least int) {
	t.Helper()
	declared := declaredTests(t)
	rows := regexp.MustCompile(`(?m)^\| .+ \| ([^|]+) \|$`).FindAllStringSubmatch(text, -1)
	if len(rows) <= least { // with the heads
		t.Fatalf("%s: %d rows", path, len(rows))
	}
	for _, row := range rows[1:] {
		named := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1)
		if len(named) == 0 {
			t.Errorf("%s: nothing shows %s", path, row[0])
		}
		for _, m := range named {
			if (strings.HasPrefix(m[1], "Test") || strings.HasPrefix(m[1], "Fuzz")) && !declared[m[1]] {
				t.Errorf("%s: there is no test %s", path, m[1])
			}
			if file, test, ok := strings.Cut(m[1], ": "); ok && !hasTypeScriptTest(t, file, test) {
				t.Errorf("%s: no test of %s begins with %q", path, file, test)
			}
		}
	}
}

// hasTypeScriptTest reports whether the name of a test in a file of the TypeScript client begins so.
func hasTypeScriptTest(t *testing.T, file, name string) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../clients/typescript/test", file))
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^\s*(?:test|lie)\(["\x60]` + regexp.QuoteMeta(name) + `\b`).Match(text)
}

// declaredTests returns the names of all tests and fuzz targets in Go.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	declared := map[string]bool{}
	name := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for path, text := range moduletest.Files(t, ".go") {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			declared[m[1]] = true
		}
	}
	if len(declared) < 500 {
		t.Fatalf("%d tests", len(declared))
	}
	return declared
}

// The README and the page of benchmarks keep to their lengths, in words.
func TestLengths(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for path, most := range map[string]int{"README.md": 650, "docs/BENCHMARKS.md": 1500} {
		if n := len(strings.Fields(all[path])); n == 0 || n > most {
			t.Errorf("%s has %d words, which must be at most %d", path, n, most)
		}
	}
}
