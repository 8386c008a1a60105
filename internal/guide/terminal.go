package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// terminal is a shell and its output.
type terminal struct {
	commands io.Writer // to the shell
	input    io.Writer // to the program that the shell runs
	cmd      *exec.Cmd
	done     chan struct{} // closed when the shell has ended

	mu      sync.Mutex // guards the fields below
	output  strings.Builder
	seen    int           // how much of the output earlier expectations have used up
	changed chan struct{} // closed when the output changes
}

// byLine is a shell that reads its commands, line by line, from a separate file. So the standard
// input belongs to the program that the shell runs. Node changes the mode of that input, and does
// not change it back when it is killed.
const byLine = `while IFS= read -r -u 3 line; do eval "$line"; done`

// openScript opens a terminal whose shell ends at the first command that fails. Its programs have
// no input.
func openScript(shell []string, folder string) (*terminal, error) {
	t := newTerminal(slices.Concat(shell, []string{"-euo", "pipefail"}), folder)
	var err error
	if t.commands, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return t, t.start()
}

// openTerminal opens a terminal for commands that somebody types.
func openTerminal(shell []string, folder string) (*terminal, error) {
	t := newTerminal(slices.Concat(shell, []string{"-c", byLine}), folder)
	var err error
	if t.input, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	commands, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer commands.Close() // the shell has its own copy by then
	t.commands = write
	t.cmd.ExtraFiles = []*os.File{commands}
	return t, t.start()
}

func newTerminal(command []string, folder string) *terminal {
	t := &terminal{cmd: exec.Command(command[0], command[1:]...), done: make(chan struct{}), changed: make(chan struct{})}
	t.cmd.Dir = folder
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that close ends the whole group
	t.cmd.Stdout, t.cmd.Stderr = t, t
	return t
}

func (t *terminal) start() error {
	if err := t.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = t.cmd.Wait() // expect reports that the shell has ended
		close(t.done)
	}()
	return nil
}

// Write stores what the shell prints.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
	return t.output.Write(p)
}

// expect waits until a text comes after the text that was expected last. It returns what came
// between the two.
func (t *terminal) expect(ctx context.Context, text string) (string, error) {
	for {
		between, found, changed := t.look(text)
		if found {
			return between, nil
		}
		select {
		case <-changed:
		case <-t.done:
			if between, found, _ := t.look(text); found {
				return between, nil
			}
			return between, fmt.Errorf("the shell has ended before %q came", text)
		case <-ctx.Done():
			return between, fmt.Errorf("%q has not come", text)
		}
	}
}

func (t *terminal) look(text string) (between string, found bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	between, _, found = strings.Cut(t.output.String()[t.seen:], text)
	if found {
		t.seen += len(between) + len(text)
	}
	return between, found, t.changed
}

// all returns the whole output.
func (t *terminal) all() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.output.String()
}

// close kills the shell and everything that it has started.
func (t *terminal) close() {
	_ = syscall.Kill(-t.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
	<-t.done
}
