package attachments

import "time"

// PurgeSQL is for a test of its plan.
const PurgeSQL = purgeSQL

// Deletions is how many objects are deleted at the same time.
const Deletions = deletions

// NoTimeToClear leaves no time for the objects of deleted attachments.
func (s *Sweeper) NoTimeToClear() { s.shares.clear = -time.Second }
