package testbed

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// tellTime prints the time in seconds whenever it reads a byte.
const tellTime = `package main

import (
	"syscall"
	"time"
)

func main() {
	for {
		if n, _ := syscall.Read(0, make([]byte, 1)); n == 0 {
			return
		}
		println(time.Now().Unix())
	}
}
`

// A program that is built with the other package time reads the time of its Clock. The clock moves
// while the program runs.
func TestClockMovesWhileAProgramRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	overlay, err := clockOverlay(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte(tellTime), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", program,
		source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	clock, err := newClock(filepath.Join(dir, "clock"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = clock.file.Close() }()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = []string{clockVariable + "=" + clock.file.Name()}
	ask, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(answers)
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		if err := clock.Set(ahead); err != nil {
			t.Fatal(err)
		}
		before := time.Now().Add(clock.Ahead()).Unix()
		if _, err := io.WriteString(ask, "?"); err != nil || !lines.Scan() {
			t.Fatalf("no answer: %v, %v", err, lines.Err())
		}
		got, err := strconv.ParseInt(lines.Text(), 10, 64)
		if after := time.Now().Add(ahead).Unix(); err != nil || got < before || got > after {
			t.Errorf("%s ahead: the program reads %s, want %d to %d", ahead, lines.Text(), before, after)
		}
	}
	if err := ask.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
