//go:build !linux

package clientsim

import "syscall"

// dieWithUs does nothing: only Linux can.
func dieWithUs(*syscall.SysProcAttr) {}
