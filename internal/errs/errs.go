// Package errs adds the failed operation to an error.
package errs

import "fmt"

// Wrap puts the operation before err: Wrap(err, "read %s", name) is "read x: ERR". If err is nil,
// Wrap returns nil, so a function can end with: return n, errs.Wrap(err, "count rows").
func Wrap(err error, doing string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(doing, args...), err)
}
