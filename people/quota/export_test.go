package quota

// MaxAccounts bounds the subjects that a node remembers.
const MaxAccounts = maxAccounts

// Due writes what is due, as the worker does.
var Due = (*Counter).flushDue

// Remembered is how many accounts are in memory.
func (c *Counter) Remembered() (n int) {
	for i := range c.shards {
		sh := &c.shards[i]
		sh.mu.RLock()
		n += len(sh.accounts)
		sh.mu.RUnlock()
	}
	return n
}
