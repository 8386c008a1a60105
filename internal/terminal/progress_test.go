package terminal_test

import (
	"bytes"
	"fmt"
	"testing"

	"mlsd/internal/terminal"
)

func TestWithoutATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := terminal.New(&out)
	p.Now("dropped")
	p.Step("dropped", "")
	p.Tick()
	p.Line("kept %d", 1)
	p.Clear()
	if out.String() != "kept 1\n" {
		t.Errorf("printed %q", out.String())
	}
}

// O5: a step of a start is shown once it takes a second, and goes on below the lines of the log.
func TestStep(t *testing.T) {
	t.Parallel()
	const erased = "\r\x1b[K"
	var out bytes.Buffer
	p := terminal.OnTerminal(&out)
	for _, c := range []struct {
		do   func()
		want string
	}{
		{p.Tick, ""},
		{func() { p.Step("downloading", "") }, ""},
		{p.Tick, "downloading … 1 s"},
		{func() { p.Step("downloading", "5 of 33 MB, ") }, ""},
		{p.Tick, erased + "downloading … 5 of 33 MB, 2 s"},
		{func() { _, _ = fmt.Fprintln(p, "a line of the log") }, erased + "a line of the log\n"},
		{p.Tick, "downloading … 5 of 33 MB, 3 s"},
		{func() { p.Step("unpacking", "") }, erased},
		{p.Tick, "unpacking … 1 s"},
		{func() { p.Step("", "") }, erased},
		{p.Tick, ""},
	} {
		if c.do(); out.String() != c.want {
			t.Errorf("printed %q, want %q", out.String(), c.want)
		}
		out.Reset()
	}
}
