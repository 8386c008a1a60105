// Package steps ends a list of steps at the first one that fails, as Fatal ends a test. Must and Check
// panic with a failure. A function that returns an error begins with defer Catch(&err), which makes
// that failure its error; a function without an error is a list of steps of its caller's. A goroutine
// calls Attempt. Packages import it without its name: the simulator is written in these words.
package steps

import "fmt"

// failure is the error of a step.
type failure struct{ err error }

// Catch ends a function's steps: it makes the failure of one of them the function's error. It is
// deferred before anything else, so that it comes after all other deferred calls.
func Catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r.err
	default:
		panic(r)
	}
}

// Attempt runs steps and returns the error of the one that failed.
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
