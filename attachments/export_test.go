package attachments

import "time"

// Statements, for tests of their plans.
const (
	PurgeSQL    = purgeSQL
	EndStraySQL = endStraySQL
)

// Deletions is how many objects are deleted at the same time.
const Deletions = deletions

// NoTimeToClear leaves no time for the objects of deleted attachments.
func (s *Sweeper) NoTimeToClear() { s.shares.clear = -time.Second }
