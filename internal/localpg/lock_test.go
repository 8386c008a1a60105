package localpg

import (
	"os"
	"syscall"
	"testing"
)

// A child that another goroutine has forked, and that has not yet called exec, has a copy of every
// open file. It must not keep the lock of an owner that has stopped.
func TestReleasedLockWithACopyOfTheFileOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock, err := acquireLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(lock.f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	inChild := os.NewFile(uintptr(fd), "copy")
	defer func() {
		if err := inChild.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := lock.release(); err != nil {
		t.Fatal(err)
	}
	again, err := acquireLock(dir)
	if err != nil {
		t.Fatalf("the lock after its release: %v", err)
	}
	if err := again.release(); err != nil {
		t.Error(err)
	}
}
