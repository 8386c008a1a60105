package usage

// Bounds of the memory, of the table and of the audit log.
const (
	Tracked        = tracked
	Listed         = listed
	AuditedPerHour = auditedPerHour
)

// Named is how many callers are counted by name now.
func (c *Counter) Named() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.callers {
		n += len(t.entries)
	}
	return n
}
