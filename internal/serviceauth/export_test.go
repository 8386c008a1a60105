package serviceauth

import "testing"

// Occupy takes every slot for checking signatures that are not urgent, until done is called.
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
