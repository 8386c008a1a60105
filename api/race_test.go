//go:build race

package api_test

// raceEnabled says that the race detector slows the test down.
const raceEnabled = true
