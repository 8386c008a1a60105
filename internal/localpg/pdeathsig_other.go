//go:build unix && !linux

package localpg

import "syscall"

// dieWithParent does nothing here: the next start stops a server that was left behind (see settle).
func dieWithParent(*syscall.SysProcAttr) {}
