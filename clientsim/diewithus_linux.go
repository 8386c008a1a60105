package clientsim

import "syscall"

// dieWithUs has a child stop in order when the simulator dies.
func dieWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }
