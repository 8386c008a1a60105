//go:build !linux

package load

import "time"

func kernelSleep(d time.Duration) { time.Sleep(d) }
