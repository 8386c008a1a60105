package bench

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// receipt is what the load keeps of an acknowledged message until the message is found in the log.
// It has only 32 bytes, because there may be millions of receipts.
type receipt struct {
	id    uuid.UUID
	draft *draft
	seq   int64
}

// entry is a log entry as a reader sees it.
type entry struct {
	id     string
	seq    int64
	sum    [sha256.Size]byte // of the ciphertext
	sender string
	commit bool
}

// audit compares the log of one convo, entry by entry, with the messages that were sent to it.
type audit struct {
	convo    *convo
	verdict  *Verdict
	receipts []receipt          // of this convo, sorted by seq
	unknown  map[*draft]int     // requests whose outcome is unknown
	drafts   map[draftID]*draft // everything that may have been sent
	last     int64              // the last seq
}

// draftID identifies a draft in a log.
type draftID struct {
	sum    [sha256.Size]byte
	sender string
}

// maxViolations is how many violations a verdict lists.
const maxViolations = 20

func (a *audit) say(format string, args ...any) {
	if len(a.verdict.Violated) < maxViolations {
		a.verdict.Violated = append(a.verdict.Violated, "convo "+a.convo.id+": "+fmt.Sprintf(format, args...))
	}
}

// newAudit returns an audit of a convo.
func newAudit(c *convo, v *Verdict, receipts []receipt, unknown map[*draft]int) *audit {
	a := &audit{convo: c, verdict: v, receipts: receipts, unknown: unknown, drafts: map[draftID]*draft{}, last: c.filled}
	slices.SortFunc(a.receipts, func(x, y receipt) int { return int(x.seq - y.seq) })
	for _, d := range c.drafts {
		a.drafts[draftID{d.sum, d.sender.DID.String()}] = d
	}
	a.verdict.Sent += int64(len(receipts))
	return a
}

// see handles the next entry of the log.
func (a *audit) see(e entry) {
	switch {
	case e.seq <= a.last:
		a.verdict.Doubled++
		a.say("seq %d comes behind seq %d", e.seq, a.last)
		return
	case e.seq > a.last+1:
		a.verdict.Gaps += e.seq - a.last - 1
		a.lose(e.seq)
	}
	a.last = e.seq
	if e.seq <= a.convo.base {
		if !e.commit {
			a.say("seq %d is no commit", e.seq)
		}
		return
	}
	a.verdict.Stored++
	d := a.drafts[draftID{e.sum, e.sender}]
	if len(a.receipts) == 0 || a.receipts[0].seq != e.seq {
		a.unacknowledged(e, d)
		return
	}
	n, found := 0, 0
	for ; n < len(a.receipts) && a.receipts[n].seq == e.seq; n++ {
		if a.receipts[n].draft == d && a.receipts[n].id.String() == e.id {
			found = 1
		}
	}
	a.receipts = a.receipts[n:]
	if n > found {
		a.verdict.Lost += int64(n - found)
		a.say("seq %d was acknowledged to %d requests, and holds the message of %d of them", e.seq, n, found)
	}
}

// unacknowledged handles an entry without an acknowledgement.
func (a *audit) unacknowledged(e entry, d *draft) {
	switch {
	case d == nil:
		a.say("seq %d was never sent", e.seq)
	case a.unknown[d] > 0:
		a.unknown[d]--
		a.verdict.Unknown++
	default:
		a.verdict.Doubled++
		a.say("seq %d is stored once too often: every request with its bytes has another entry", e.seq)
	}
}

// lose counts the receipts below a seq. Their entries are missing.
func (a *audit) lose(below int64) {
	for len(a.receipts) > 0 && a.receipts[0].seq < below {
		a.verdict.Lost++
		a.say("seq %d was acknowledged and is not there", a.receipts[0].seq)
		a.receipts = a.receipts[1:]
	}
}

// end handles the end of the log.
func (a *audit) end() {
	const behindAll = 1 << 62
	a.lose(behindAll)
	if a.last < a.convo.base {
		a.verdict.Gaps += a.convo.base - a.last
		a.say("it ends at seq %d", a.last)
	}
}
