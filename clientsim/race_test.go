//go:build race

package clientsim

// raceEnabled says that the race detector slows the test down.
const raceEnabled = true
