package load

import (
	"syscall"
	"time"
)

// kernelSleep sleeps in the kernel, which is exact to about 50 µs. A signal may end it early.
func kernelSleep(d time.Duration) {
	t := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&t, nil)
}
