package messages

import (
	"errors"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/idem"
	"mlsd/internal/serviceauth"
)

// key is what names a request to send a message.
type key struct {
	convo  uuid.UUID
	sender syntax.DID
	key    string
}

func (d *Draft) id() key { return key{d.ConvoID, d.Sender, d.Key} }

// repeats reports whether d is the same request as other.
func (d *Draft) repeats(other *Draft) bool { return d.Hash == other.Hash && d.id() == other.id() }

// pass is what one statement may write of a batch: one draft of each key, because a statement cannot see the row that it is
// itself inserting for another draft.
type pass struct {
	first   []Draft
	indices []int       // of first, in the batch as it was given
	of      map[int]int // index in the batch → index in first: the same request, without a token, answered with it
	later   []deferred  // same key, and other content or a token that is to be used up: judged when the first one's fate is known
}

// deferred is a draft of the batch that waits for another of its key.
type deferred struct{ index, first int }

// passOf returns the pass of the drafts at indices. Drafts whose keys the log holds already may all be in it: nothing is inserted for
// them.
func passOf(drafts []Draft, indices []int, held map[key]bool) pass {
	seen := make(map[key]int, len(indices))
	p := pass{of: make(map[int]int, len(indices))}
	for _, i := range indices {
		d := &drafts[i]
		j, repeated := seen[d.id()]
		switch {
		case !repeated || held[d.id()]:
			j = len(p.first)
			seen[d.id()] = j
			p.first, p.indices = append(p.first, *d), append(p.indices, i)
			p.of[i] = j
		case p.first[j].Hash == d.Hash && d.Token == nil && p.first[j].Token == nil:
			p.of[i] = j
		default:
			p.later = append(p.later, deferred{i, j})
		}
	}
	return p
}

// next gives the deferred drafts whose fate follows from that of the first of their key their results, and returns the others, which
// the next pass is for. It adds to held the keys that are in the log by now.
func (p *pass) next(drafts []Draft, settled, results []Result, held map[key]bool) (indices []int) {
	for _, later := range p.later {
		d, first, r := &drafts[later.index], &p.first[later.first], settled[later.first]
		switch {
		case r.Err == nil || errors.As(r.Err, new(*idem.ConflictError)):
			held[d.id()] = true
		case errors.Is(r.Err, ErrBusy):
			results[later.index].Err = r.Err
			continue
		case r.refused() && !errors.Is(r.Err, serviceauth.ErrReplayed) && d.Hash == first.Hash:
			results[later.index].Err = r.Err // without an effect, for which its token would have to be used up
			continue
		case !r.refused() && !poisoned(r.Err): // what failed for the first would fail for them one after the other
			results[later.index].Err = r.Err
			continue
		}
		indices = append(indices, later.index)
	}
	return indices
}

// refuseSharedTokens refuses the drafts whose token another draft has, and returns the indices of the others.
func refuseSharedTokens(drafts []Draft, results []Result) (indices []int) {
	indices = make([]int, 0, len(drafts))
	tokens := make(map[serviceauth.TokenID]bool, len(drafts))
	for i := range drafts {
		if token := drafts[i].Token; token != nil {
			id := token.ID()
			if tokens[id] {
				results[i].Err = serviceauth.ErrReplayed
				continue
			}
			tokens[id] = true
		}
		indices = append(indices, i)
	}
	return indices
}
