package messages

import (
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
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
	of      map[int]int // index in the batch → index in first: the same request, answered with it
	later   []int       // same key, other content: judged in the next pass, when the first one's fate is known
}

func joinAll(drafts []Draft) pass {
	all := make([]int, len(drafts))
	for i := range all {
		all[i] = i
	}
	return joinSome(drafts, all)
}

func joinSome(drafts []Draft, indices []int) pass {
	seen := make(map[key]int, len(indices))
	p := pass{of: make(map[int]int, len(indices))}
	for _, i := range indices {
		d := &drafts[i]
		j, repeated := seen[d.id()]
		switch {
		case !repeated:
			j = len(p.first)
			seen[d.id()] = j
			p.first, p.indices = append(p.first, *d), append(p.indices, i)
			p.of[i] = j
		case p.first[j].Hash == d.Hash:
			p.of[i] = j
		default:
			p.later = append(p.later, i)
		}
	}
	return p
}
