//go:build !race

package mlsclient

const raceEnabled = false
