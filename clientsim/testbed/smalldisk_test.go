package testbed

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestSmallDiskIsFullUntilItIsFreed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disk, err := NewSmallDisk(dir)
	if err != nil {
		t.Skipf("SKIPPED a full disk: %v", err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	write := func(name string) error { return os.WriteFile(filepath.Join(dir, name), make([]byte, 1<<16), 0o600) }
	if err := write("before"); err != nil {
		t.Fatal(err)
	}
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	if err := write("full"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	if err := write("before"); err != nil {
		t.Errorf("over what is there: %v", err)
	}
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}
	if err := write("after"); err != nil {
		t.Errorf("after it was freed: %v", err)
	}
}
