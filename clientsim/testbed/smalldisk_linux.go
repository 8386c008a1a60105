package testbed

import (
	"errors"
	"fmt"
	"syscall"
)

// SmallDisk is a file system of its own in a directory, which can become full. The file system is
// in memory. Mounting it needs root.
type SmallDisk struct{ dir string }

// diskSize is the size of a SmallDisk that is not full. Only written data takes memory.
const diskSize = "size=8g,mode=755"

// NewSmallDisk mounts a file system on an empty directory.
func NewSmallDisk(dir string) (*SmallDisk, error) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, diskSize); err != nil {
		return nil, fmt.Errorf("mount a small disk: %w", err)
	}
	return &SmallDisk{dir}, nil
}

// Fill makes the disk just as large as its data: nothing more can be written until Free. Files can
// shrink, and grow again to the old size.
func (d *SmallDisk) Fill() error {
	for {
		var now syscall.Statfs_t
		if err := syscall.Statfs(d.dir, &now); err != nil {
			return fmt.Errorf("small disk: %w", err)
		}
		err := d.resize(fmt.Sprintf("nr_blocks=%d", now.Blocks-now.Bfree))
		if !errors.Is(err, syscall.EINVAL) { // EINVAL means that the data has just grown
			return err
		}
	}
}

// Free gives the disk its first size again.
func (d *SmallDisk) Free() error { return d.resize(diskSize) }

func (d *SmallDisk) resize(options string) error {
	if err := syscall.Mount("tmpfs", d.dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_REMOUNT,
		options); err != nil {
		return fmt.Errorf("small disk: %w", err)
	}
	return nil
}

// Close unmounts the disk. Its data is lost.
func (d *SmallDisk) Close() error {
	if err := syscall.Unmount(d.dir, syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount a small disk: %w", err)
	}
	return nil
}
