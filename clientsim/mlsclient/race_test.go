//go:build race

package mlsclient

// raceEnabled says that the race detector slows the test down.
const raceEnabled = true
