//go:build !linux

package testbed

import "syscall"

// stopWithParent does nothing: only Linux can stop a child with its parent.
func stopWithParent(*syscall.SysProcAttr) {}
