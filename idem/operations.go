package idem

import (
	"cmp"
	"slices"
	"time"
)

// Operation is how long things last for one method's keys.
type Operation struct {
	NSID  string        // "": every method that is not listed
	Life  time.Duration // of a record: within it a repetition gets the first answer
	Lease time.Duration // of a reservation that is not extended
}

// Operations returns the lifetimes, the default first and then those that differ, by name.
func Operations() []Operation {
	all := []Operation{{Life: defaultLife, Lease: defaultLease}}
	for nsid := range operations {
		op := operationOf(nsid.String())
		all = append(all, Operation{NSID: nsid.String(), Life: op.life, Lease: op.lease})
	}
	slices.SortFunc(all, func(a, b Operation) int { return cmp.Compare(a.NSID, b.NSID) })
	return all
}
