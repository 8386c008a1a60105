package testbed

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// This file makes the clock of a server wrong. A Go program reads the time without the C library,
// so a library such as libfaketime does not reach it. Instead, a server is built with another
// package time, which adds a number of seconds from a file. The source of the server stays as it
// is.

// clockVariable names the file of a server's Clock in its environment.
const clockVariable = "CLOCK_AHEAD"

//go:embed clock_ahead.txt
var clockSource string

// BuildMovable builds mlsd into dir, with a clock that a Clock moves. The first build compiles
// the standard library and takes about a minute.
func BuildMovable(ctx context.Context, dir string) (string, error) {
	overlay, err := clockOverlay(ctx, dir)
	if err != nil {
		return "", fmt.Errorf("build a server with a movable clock: %w", err)
	}
	return BuildServer(ctx, dir, "-overlay", overlay)
}

// clockOverlay writes the files into dir that go build's -overlay needs for another package time.
func clockOverlay(ctx context.Context, dir string) (_ string, err error) {
	defer Catch(&err)
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	Check(errs.Wrap(err, "go env"))
	original := filepath.Join(string(bytes.TrimSpace(root)), "src", "time", "time.go")
	source := Must(os.ReadFile(original))
	const before = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if n := strings.Count(string(source), before); n != 1 {
		return "", fmt.Errorf("%s has another time.Now than Go 1.26", original)
	}
	changed := strings.Replace(string(source), before, before+"\tsec += ahead()\n", 1)
	replace := map[string]string{}
	for original, text := range map[string]string{original: changed,
		filepath.Join(filepath.Dir(original), "ahead.go"): clockSource} {
		replace[original] = filepath.Join(dir, filepath.Base(original))
		Check(os.WriteFile(replace[original], []byte(text), 0o600))
	}
	raw := Must(json.Marshal(map[string]any{"Replace": replace}))
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, raw, 0o600)
}

// Clock moves the clock of one server, also while the server runs. BuildMovable must have built the
// server. A Clock is safe for concurrent use.
type Clock struct {
	file  *os.File
	ahead atomic.Int64 // seconds
	moved atomic.Int64 // when Set last changed ahead, in nanoseconds since 1970
}

// newClock makes a clock that is right.
func newClock(path string) (*Clock, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("clock: %w", err)
	}
	c := &Clock{file: file}
	if err := c.Set(0); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return c, nil
}

// Set makes the server's clock wrong by d, in whole seconds. If d is positive, the clock is fast.
func (c *Clock) Set(d time.Duration) error {
	seconds := int64(d / time.Second)
	if c.ahead.Swap(seconds) != seconds {
		c.moved.Store(time.Now().UnixNano())
	}
	var raw [8]byte
	binary.NativeEndian.PutUint64(raw[:], uint64(seconds))
	if _, err := c.file.WriteAt(raw[:], 0); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	return nil
}

// Ahead returns by how much the clock is wrong.
func (c *Clock) Ahead() time.Duration { return time.Duration(c.ahead.Load()) * time.Second }

// settled is longer than the life of a token, with the difference that servers accept.
const settled = 2 * time.Minute

// Right reports whether the clock is right, and has been for longer than a token lives.
func (c *Clock) Right() bool {
	return c.Ahead() == 0 && time.Since(time.Unix(0, c.moved.Load())) > settled
}
