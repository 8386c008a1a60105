package testbed

import "time"

// SharePeriod is the time in which a share is used up at most once. The kernel's default is five
// times as long: then a process with a tenth of a core waits 90 ms at a time.
const SharePeriod = 20 * time.Millisecond

// ShareUse is what the processes of a Share have used since it was made.
type ShareUse struct {
	Used time.Duration // processor time
	// Periods are those in which they ran, and Throttled those at whose end they had to wait.
	Periods, Throttled int64
}
