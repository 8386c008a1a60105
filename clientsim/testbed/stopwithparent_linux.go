package testbed

import "syscall"

// stopWithParent makes the kernel stop the child when the simulator dies.
func stopWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }
