package migrations

import (
	"io/fs"
	"time"
)

// Files replaces the migrations.
func Files(files fs.FS) Option { return func(r *runner) { r.files = files } }

// Patience replaces how long a statement waits for a lock, how often a migration is tried, and the
// pause after the first attempt.
func Patience(lock time.Duration, attempts int, pause time.Duration) Option {
	return func(r *runner) { r.driver.lockTimeout, r.attempts, r.firstPause = lock, attempts, pause }
}
