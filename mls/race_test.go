//go:build race

package mls

// raceEnabled says that the race detector slows the test down.
const raceEnabled = true
