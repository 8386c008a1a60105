// Package steps ends a list of steps at the first step that fails, as Fatal ends a test. Must and
// Check panic with a failure. A function that returns an error begins with defer Catch(&err), which
// makes the failure its error. The steps of a function without an error belong to the list of its
// caller. A goroutine calls Attempt, unless Each or AtOnce has started the goroutine. Packages
// import steps with a dot, because all of the simulator is written in these words.
package steps

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"mlsd/internal/errs"
)

// failure is the error of a step.
type failure struct{ err error }

// Catch ends a function's steps: it makes the failure of a step the function's error. It is
// deferred before anything else, so that it runs after all other deferred calls.
func Catch(err *error) { caught(recover(), err) }

// CatchIn is Catch. Before the failure of a step, it says what the function was doing.
func CatchIn(err *error, doing string, args ...any) {
	if caught(recover(), err) {
		*err = errs.Wrap(*err, doing, args...)
	}
}

// caught makes a recovered failure the error. Other panics go on.
func caught(recovered any, err *error) bool {
	f, ok := recovered.(failure)
	switch {
	case ok:
		*err = f.err
	case recovered != nil:
		panic(recovered)
	}
	return ok
}

// Attempt runs steps and returns the error of the step that failed.
func Attempt(steps func()) (err error) {
	defer Catch(&err)
	steps()
	return nil
}

// Check ends the steps if err is not nil.
func Check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Fail ends the steps with an error of this text.
func Fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// Must returns v, or ends the steps if err is not nil.
func Must[T any](v T, err error) T {
	Check(err)
	return v
}

// Must2 is Must for two values.
func Must2[T, U any](v T, u U, err error) (T, U) {
	Check(err)
	return v, u
}

// Each calls do for 0 to n-1, with at most lanes calls at a time. The first failure ends the steps.
func Each(lanes, n int, do func(i int)) {
	all, failed := errgroup.WithContext(context.Background())
	all.SetLimit(lanes)
	for i := range n {
		if failed.Err() != nil {
			break
		}
		all.Go(func() error { return Attempt(func() { do(i) }) })
	}
	Check(all.Wait())
}

// AtOnce runs several lists of steps at the same time.
func AtOnce(all ...func()) {
	Each(len(all), len(all), func(i int) { all[i]() })
}
