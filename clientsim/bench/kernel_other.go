//go:build !linux

package bench

import (
	"os"
	"time"
)

func kernelSleep(d time.Duration) { time.Sleep(d) }

func flush(f *os.File) error { return f.Sync() }
