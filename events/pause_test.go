package events

import (
	"testing"
	"time"
)

// The pause after a step is as long as the step, within bounds: a quick step does not make the
// sequencer spin, and a slow one does not delay the next events by as long again.
func TestPauseAfter(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: minPause, minPause / 2: minPause, 3 * time.Millisecond: 3 * time.Millisecond, time.Second: maxPause,
	} {
		if got := pauseAfter(took); got != want {
			t.Errorf("after a step of %s the pause is %s, want %s", took, got, want)
		}
	}
}
