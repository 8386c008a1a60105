//go:build !linux

package bench

import "time"

func kernelSleep(d time.Duration) { time.Sleep(d) }
