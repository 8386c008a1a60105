//go:build !linux

package bench

import "time"

func nap(d time.Duration) { time.Sleep(d) }
