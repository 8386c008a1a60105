package requests

// Bounds of the memory, of the table and of the audit log.
const (
	Tracked        = tracked
	Listed         = listed
	AuditedPerHour = auditedPerHour
)

// Named is how many callers are counted by name now.
func (r *Recorder) Named() (n int) {
	r.counts.mu.Lock()
	defer r.counts.mu.Unlock()
	for _, t := range r.counts.callers {
		n += len(t.entries)
	}
	return n
}
