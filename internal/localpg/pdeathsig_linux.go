package localpg

import "syscall"

// dieWithParent asks the kernel to send the child SIGINT (fast shutdown, for a postmaster) when we die, even by SIGKILL. The signal
// follows the *thread* that forked: see startProcess.
func dieWithParent(attr *syscall.SysProcAttr) {
	attr.Pdeathsig = syscall.SIGINT
}
