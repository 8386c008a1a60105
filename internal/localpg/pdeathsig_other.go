//go:build unix && !linux

package localpg

import "syscall"

// dieWithParent does nothing on this system. The next start stops a server that still runs (see
// stopOrphan).
func dieWithParent(*syscall.SysProcAttr) {}
