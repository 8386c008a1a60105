package localpg

import "syscall"

// dieWithParent makes the kernel send the child SIGINT when this process ends, even by SIGKILL. For
// a postmaster SIGINT means a fast shutdown. The kernel sends the signal when the *thread* that
// forked ends: see startProcess.
func dieWithParent(attr *syscall.SysProcAttr) {
	attr.Pdeathsig = syscall.SIGINT
}
