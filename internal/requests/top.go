package requests

import (
	"cmp"
	"container/heap"
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
	sum           // since the caller got its entry
	weight int64  // sum.n, and the weight of the entry that gave way to this one
	key    string // that was given to add last
	place  int    // in the heap
}

// top counts requests by caller in bounded memory: the most frequent callers by name, all others
// together. Every request is counted once.
//
// It is the algorithm Space-Saving (Metwally, Agrawal, El Abbadi, 2005). When all entries are in
// use, a new caller takes the entry with the lowest weight and inherits this weight. So a caller
// with more than one in limit of all requests always has an entry at the end, however many other
// callers there are.
type top struct {
	limit   int
	entries map[caller]*entry
	lowest  byWeight       // a heap of the entries
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
		heap.Push(&t.lowest, e)
	default:
		c.did = strings.Clone(c.did)
		e = t.lowest[0]
		t.others[e.nsid] = t.others[e.nsid].plus(e.sum)
		delete(t.entries, e.caller)
		e.caller, e.sum = c, sum{}
		t.entries[c] = e
	}
	e.sum = e.plus(sum{1, took})
	e.weight++
	e.key = strings.Clone(key)
	heap.Fix(&t.lowest, e.place)
}

// sorted returns the entries, those with the most requests first.
func (t *top) sorted() []*entry {
	all := slices.Clone(t.lowest)
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.did, b.did), cmp.Compare(a.nsid, b.nsid))
	})
	return all
}

// byWeight implements heap.Interface. The entry with the lowest weight is the first.
type byWeight []*entry

func (h byWeight) Len() int           { return len(h) }
func (h byWeight) Less(i, j int) bool { return h[i].weight < h[j].weight }
func (h byWeight) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *byWeight) Push(x any) {
	e := x.(*entry)
	e.place = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *byWeight) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}
