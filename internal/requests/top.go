package requests

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// caller is one caller of one method.
type caller struct{ did, nsid string }

// sum is a number of requests and the time that they took.
type sum struct {
	n    int64
	took time.Duration
}

func (s sum) plus(o sum) sum { return sum{s.n + o.n, s.took + o.took} }

// entry is a caller that is counted by name.
type entry struct {
	caller
	sum
	key string // that was given to add last
}

// top counts requests by caller in bounded memory: the first limit callers by name, all others
// together. Every request is counted once. A caller with many requests is among the first ones,
// because counts begin anew with each write.
type top struct {
	limit   int
	entries map[caller]*entry
	others  map[string]sum // by method
}

func newTop(limit int) *top {
	return &top{limit: limit, entries: map[caller]*entry{}, others: map[string]sum{}}
}

// add counts a request of c. key is what the entry remembers of it, or "".
func (t *top) add(c caller, took time.Duration, key string) {
	e := t.entries[c]
	switch {
	case e != nil:
	case len(t.entries) < t.limit:
		c.did = strings.Clone(c.did) // keeps nothing else of the request in memory
		e = &entry{caller: c}
		t.entries[c] = e
	default:
		t.others[c.nsid] = t.others[c.nsid].plus(sum{1, took})
		return
	}
	e.sum = e.plus(sum{1, took})
	e.key = strings.Clone(key)
}

// sorted returns the entries, those with the most requests first.
func (t *top) sorted() []*entry {
	return slices.SortedFunc(maps.Values(t.entries), func(a, b *entry) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.did, b.did), cmp.Compare(a.nsid, b.nsid))
	})
}
