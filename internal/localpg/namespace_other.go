//go:build unix && !linux

package localpg

import "syscall"

// borrowName reports false: this system has no user namespaces.
func borrowName(*syscall.SysProcAttr, *account) bool { return false }
