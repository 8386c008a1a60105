// Package idemtest has what tests of other packages need of package idem.
package idemtest

// Uncounted are metrics that count nothing.
type Uncounted struct{}

// First implements idem.Metrics, as do the other methods.
func (Uncounted) First(string)         {}
func (Uncounted) Replayed(string)      {}
func (Uncounted) Conflicted(string)    {}
func (Uncounted) InProgress(string)    {}
func (Uncounted) Expired(string)       {}
func (Uncounted) TakenOver(string)     {}
func (Uncounted) HeartbeatLost(string) {}
