package testbed

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of /proc/PID/stat on every Linux there is.
const tick = 10 * time.Millisecond

// stat is a process's line in /proc/PID/stat.
type stat struct {
	parent      int
	own, reaped time.Duration // its own time, and that of its children that have ended
}

func statOf(pid int) (s stat) {
	if pid == 0 {
		return s
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s
	}
	return parseStat(text)
}

// parseStat reads proc(5). The command's name is in parentheses and may contain parentheses.
func parseStat(text []byte) (s stat) {
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return s
	}
	number := func(i int) int64 {
		n, err := strconv.ParseInt(fields[i-3], 10, 64) // proc(5) counts from 1, and the state is field 3
		if err != nil {
			return 0
		}
		return n
	}
	s.parent = int(number(4))
	s.own = time.Duration(number(14)+number(15)) * tick
	s.reaped = time.Duration(number(16)+number(17)) * tick
	return s
}

// ProcessTime returns the processor time of a process, without the time of its children. It is 0
// for a process that does not exist, and on systems without /proc.
func ProcessTime(pid int) time.Duration { return statOf(pid).own }

// Parent returns the id of a process's parent, or 0.
func Parent(pid int) int { return statOf(pid).parent }

// childrenOf returns the children of a process, by their ids.
func childrenOf(parent int) map[int]stat {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	children := map[int]stat{}
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if s := statOf(pid); err == nil && s.parent == parent {
			children[pid] = s
		}
	}
	return children
}

// TreeTime returns the processor time of a process and its children, living and dead.
func TreeTime(parent int) time.Duration {
	if parent == 0 {
		return 0
	}
	all := statOf(parent)
	sum := all.own + all.reaped
	for _, child := range childrenOf(parent) {
		sum += child.own + child.reaped
	}
	return sum
}
