package serviceauth

import "testing"

// Occupy has as many signatures that are not urgent being checked as may be at one time, until it is called back.
func (v *Validator) Occupy(t *testing.T) (done func()) {
	t.Helper()
	for range cap(v.checking) {
		v.checking <- struct{}{}
	}
	return func() {
		for range cap(v.checking) {
			<-v.checking
		}
	}
}
