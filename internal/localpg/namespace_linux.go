package localpg

import (
	"os/user"
	"strconv"
	"syscall"
)

// borrowName makes a command see a name for its uid, because initdb fails if its uid has no name.
// The command runs in a user namespace of its own, in which the uid of the account looks like the
// uid of an account that has a name. Outside of the namespace, the command's files and processes
// have the account's own uid. borrowName reports false if no name can be borrowed.
func borrowName(attr *syscall.SysProcAttr, a *account) bool {
	for _, name := range []string{"nobody", "daemon", "bin"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil || uid == 0 {
			continue
		}
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: int(a.uid), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: int(a.gid), Size: 1}}
		attr.GidMappingsEnableSetgroups = true
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), Groups: []uint32{}}
		return true
	}
	return false
}
