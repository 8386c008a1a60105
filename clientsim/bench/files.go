package bench

import (
	"fmt"
	"syscall"
)

// spareFiles are the open files of a process besides those of its streams.
const spareFiles = 1000

// checkFiles refuses more open files and connections of a process than are allowed. A Go program
// raises its limit to the greatest one by itself.
func checkFiles(n uint64) error {
	var have syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &have); err != nil {
		return err
	}
	if have.Max < n {
		return fmt.Errorf("a process needs %d open files, and %d are allowed (ulimit -Hn): use more nodes", n, have.Max)
	}
	return nil
}
