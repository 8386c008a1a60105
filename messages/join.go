package messages

import (
	"crypto/sha256"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
)

// draft is the first draft of its key in a batch.
type draft struct {
	Draft
	index int // in the batch as it was given
	hash  [sha256.Size]byte
}

// pass is what one statement may write of a batch: one draft of each key, because a statement cannot see the row that it is
// itself inserting for another draft.
type pass struct {
	first []draft
	of    map[int]int // index in the batch → index in first: the same request, answered with it
	later []int       // same key, other content: judged in the next pass, when the first one's fate is known
}

func joinAll(drafts []Draft) pass {
	all := make([]int, len(drafts))
	for i := range all {
		all[i] = i
	}
	return joinSome(drafts, all)
}

func joinSome(drafts []Draft, indices []int) pass {
	type key struct {
		convo  uuid.UUID
		sender syntax.DID
		key    string
	}
	seen := make(map[key]int, len(indices))
	p := pass{of: make(map[int]int, len(indices))}
	for _, i := range indices {
		d := drafts[i]
		k, hash := key{d.ConvoID, d.Sender, d.Key}, d.Input.Hash()
		j, repeated := seen[k]
		switch {
		case !repeated:
			j = len(p.first)
			seen[k] = j
			p.first = append(p.first, draft{Draft: d, index: i, hash: hash})
			p.of[i] = j
		case p.first[j].hash == hash:
			p.of[i] = j
		default:
			p.later = append(p.later, i)
		}
	}
	return p
}
