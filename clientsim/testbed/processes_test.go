package testbed

import (
	"testing"
	"time"
)

// A process's name cannot confuse the parser of /proc.
func TestParseStat(t *testing.T) {
	t.Parallel()
	line := "4711 (postgres: (x) y) S 42 1 1 0 -1 4194304 100 200 0 0 150 50 30 20 20 0 1 0 12345"
	got := parseStat([]byte(line))
	if got.parent != 42 || got.own != 2*time.Second || got.reaped != time.Second/2 {
		t.Errorf("%+v", got)
	}
	if got := parseStat([]byte("1 (x) S")); got != (stat{}) {
		t.Errorf("%+v of a line that is cut short", got)
	}
}
