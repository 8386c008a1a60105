//go:build !race

package mls

const raceEnabled = false
