package localpg

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// owner is a process that owns a server. It runs this test binary as a helper.
type owner struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	report chan string
	ended  chan struct{}
}

// launchOwner starts an owner of dir. change can adjust the command. The end of the test kills the
// owner.
func launchOwner(t *testing.T, dir string, change func(*exec.Cmd)) *owner {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), helperEnv+"="+dir)
	if change != nil {
		change(cmd)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := &owner{cmd: cmd, stdin: stdin, report: make(chan string, 1), ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			line = "failed to report: " + err.Error()
		}
		o.report <- line
		_ = cmd.Wait() // usually it was killed, so an error is expected
	}()
	t.Cleanup(func() { o.kill(t) })
	return o
}

// line waits for the owner's report.
func (o *owner) line(t *testing.T) string {
	t.Helper()
	select {
	case line := <-o.report:
		return line
	case <-time.After(deadline):
		t.Fatal("the owner did not report")
		return ""
	}
}

// ready waits until the server is up and returns its pid.
func (o *owner) ready(t *testing.T) (pid int) {
	t.Helper()
	line := o.line(t)
	if _, err := fmt.Sscanf(line, "ready %d", &pid); err != nil {
		t.Fatalf("owner: %s", line)
	}
	return pid
}

// kill ends the owner with SIGKILL and waits for its end.
func (o *owner) kill(t *testing.T) {
	t.Helper()
	if err := o.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	o.wait(t)
}

// finish makes the owner stop in order.
func (o *owner) finish(t *testing.T) {
	t.Helper()
	if err := o.stdin.Close(); err != nil {
		t.Error(err)
	}
	o.wait(t)
	if code := o.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("owner exits with %d", code)
	}
}

func (o *owner) wait(t *testing.T) {
	t.Helper()
	select {
	case <-o.ended:
	case <-time.After(deadline):
		t.Error("the owner did not end")
	}
}
