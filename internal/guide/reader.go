package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// mainTerminal and hostTerminal run commands that must succeed.
	mainTerminal = ""
	hostTerminal = "host"
	// serverTerminal is the terminal in which the page starts the server.
	serverTerminal = "server"
	// showTime is how long a line of a running program may take.
	showTime = time.Minute
)

// reader follows a page.
type reader struct {
	folder, clone string
	shell         []string
	timeout       time.Duration
	out           io.Writer
	terminals     map[string]*terminal
}

// prepare creates the folder, with the checkout in it.
func (r *reader) prepare() error {
	if err := os.MkdirAll(r.folder, 0o755); err != nil {
		return err
	}
	link := filepath.Join(r.folder, "mlsd")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(r.clone, link)
}

// follow does what a page says. Its error begins with the line of the block.
func (r *reader) follow(ctx context.Context, page string) error {
	if err := r.prepare(); err != nil {
		return fmt.Errorf(": %w", err)
	}
	r.terminals = map[string]*terminal{}
	defer func() {
		for _, t := range r.terminals {
			t.close()
		}
	}()
	done := 0
	for _, b := range blocksOf(page) {
		begun := time.Now()
		did, err := r.do(ctx, b)
		if err != nil {
			return fmt.Errorf(":%d: %w\n%s", b.line, err, r.outputs())
		}
		if did != "" {
			done++
			fmt.Fprintf(r.out, "%6.1f s  line %3d: %s\n", time.Since(begun).Seconds(), b.line, did)
		}
	}
	if done == 0 {
		return errors.New(": there is nothing to do")
	}
	return nil
}

// do handles one block, and says what it has done.
func (r *reader) do(ctx context.Context, b block) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	first, _, _ := strings.Cut(b.text, "\n")
	switch {
	case b.language == "sh" && b.name == serverTerminal:
		if !strings.HasSuffix(b.text, start+"\n") {
			return "", fmt.Errorf("the page starts the server otherwise than by %q", start)
		}
		return "", nil
	case b.language == "sh" && (b.name == mainTerminal || b.name == hostTerminal):
		return first, r.succeed(ctx, b.name, b.text)
	case b.name == "":
		return "", nil
	case b.shows:
		return b.name + " shows " + first, r.shows(ctx, b)
	case b.language == "sh" || b.language == "text":
		return b.name + " types " + first, r.enter(b)
	default:
		return b.name, r.write(ctx, b)
	}
}

// terminal returns a terminal. A new terminal begins in the folder.
func (r *reader) terminal(name string) (t *terminal, err error) {
	if t := r.terminals[name]; t != nil {
		return t, nil
	}
	switch name {
	case mainTerminal:
		t, err = openScript(r.shell, r.folder)
	case hostTerminal:
		t, err = openScript([]string{"bash"}, r.folder)
	default:
		t, err = openTerminal(r.shell, r.folder)
	}
	if err == nil {
		r.terminals[name] = t
	}
	return t, err
}

// enter types a block.
func (r *reader) enter(b block) error {
	t, err := r.terminal(b.name)
	if err != nil {
		return err
	}
	to := t.input
	if b.language == "sh" {
		to = t.commands
	}
	_, err = io.WriteString(to, b.text)
	return err
}

// succeed runs a command, and compares its output with its comments.
func (r *reader) succeed(ctx context.Context, name, command string) error {
	t, err := r.terminal(name)
	if err != nil {
		return err
	}
	const end = "-- the command has ended --"
	// A program inside the braces cannot read what is typed after them.
	if _, err := io.WriteString(t.commands, "{\n"+command+"} </dev/null\necho '"+end+"'\n"); err != nil {
		return err
	}
	output, err := t.expect(ctx, end)
	if err != nil {
		return err
	}
	return inOrder(output, expected(command))
}

// shows waits for the lines of a block.
func (r *reader) shows(ctx context.Context, b block) error {
	t := r.terminals[b.name]
	if t == nil {
		return fmt.Errorf("there is no terminal %s", b.name)
	}
	ctx, cancel := context.WithTimeout(ctx, showTime)
	defer cancel()
	for _, line := range lines(b.text) {
		if _, err := t.expect(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

// write writes a file. If the file is a workflow, write runs its steps.
func (r *reader) write(ctx context.Context, b block) error {
	if !strings.Contains(b.before, "`"+b.name+"`") {
		return fmt.Errorf("the text before the block does not name %s", b.name)
	}
	const end = "end-of-the-file"
	command := fmt.Sprintf("mkdir -p %s\ncat >%s <<'%s'\n%s%s\n", filepath.Dir(b.name), b.name, end, b.text, end)
	if err := r.succeed(ctx, mainTerminal, command); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(b.name, ".github/workflows/"):
		return r.workflow(ctx, b.text)
	case b.name == "compose.yaml":
		return checkCompose(b.text)
	}
	return nil
}

// outputs returns everything that each terminal has printed.
func (r *reader) outputs() string {
	var s strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.terminals)) {
		fmt.Fprintf(&s, "== terminal %q\n%s\n", name, r.terminals[name].all())
	}
	return s.String()
}

// block is a fenced block of a page.
type block struct {
	line     int    // line of the page at which the block begins
	language string // sh, text, ts, …
	name     string // a terminal or a path, or empty
	shows    bool   // the text is expected output, not input
	text     string // with its last line end
	before   string // the text between this block and the block before
}

var fence = regexp.MustCompile("(?ms)^```(\\w+)(?: (\\S+))?( shows)?\n(.*?)^```$")

// blocksOf returns the blocks of a page.
func blocksOf(page string) (found []block) {
	end := 0
	for _, m := range fence.FindAllStringSubmatchIndex(page, -1) {
		part := func(i int) string {
			if m[2*i] < 0 {
				return ""
			}
			return page[m[2*i]:m[2*i+1]]
		}
		found = append(found, block{
			line:     1 + strings.Count(page[:m[0]], "\n"),
			language: part(1),
			name:     part(2),
			shows:    part(3) != "",
			text:     part(4),
			before:   page[end:m[0]],
		})
		end = m[1]
	}
	return found
}

// expected returns the output that the comments of a command announce.
func expected(command string) (texts []string) {
	for _, m := range regexp.MustCompile(`(?m)# → (.+)$`).FindAllStringSubmatch(command, -1) {
		texts = append(texts, m[1])
	}
	return texts
}

// lines returns the lines of a text that are not empty.
func lines(text string) (found []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			found = append(found, line)
		}
	}
	return found
}

// inOrder returns an error unless the output contains the texts, one after the other.
func inOrder(output string, texts []string) error {
	for _, text := range texts {
		_, after, ok := strings.Cut(output, text)
		if !ok {
			return fmt.Errorf("no %q in what is left of the output", text)
		}
		output = after
	}
	return nil
}
