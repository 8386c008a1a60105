// Package errs says what an operation was that failed.
package errs

import "fmt"

// Wrap returns err with what was being done before it: Wrap(err, "read %s", name) is "read x: ERR". It
// returns nil for nil, so it stands at the end of a function: return n, errs.Wrap(err, "count rows").
func Wrap(err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(doing, args...), err)
}
