//go:build !linux

package testbed

import (
	"errors"
	"fmt"
)

// SmallDisk is a file system that can become full. There is none on this system.
type SmallDisk struct{}

// NewSmallDisk returns an error.
func NewSmallDisk(string) (*SmallDisk, error) {
	return nil, fmt.Errorf("mount a small disk: %w", errors.ErrUnsupported)
}

// Fill does nothing.
func (d *SmallDisk) Fill() error { return nil }

// Free does nothing.
func (d *SmallDisk) Free() error { return nil }

// Close does nothing.
func (d *SmallDisk) Close() error { return nil }
