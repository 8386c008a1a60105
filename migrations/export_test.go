package migrations

import (
	"io/fs"
	"time"

	"mlsd/internal/failpoint"
)

// Files replaces the migrations.
func Files(files fs.FS) Option { return func(r *runner) { r.files = files } }

// Patience replaces how long a statement waits for a lock, how often a migration is tried, and the
// pause after the first attempt.
func Patience(lock time.Duration, attempts int, pause time.Duration) Option {
	return func(r *runner) { r.driver.lockTimeout, r.attempts, r.firstPause = lock, attempts, pause }
}

// Faults sets the failpoints. Their points are failpoint.BeforeCommit and failpoint.AfterCommit, and
// their methods "up 2" and "down 2".
func Faults(faults *failpoint.Set) Option { return func(r *runner) { r.driver.faults = faults } }
