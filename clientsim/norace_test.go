//go:build !race

package clientsim

const raceEnabled = false
