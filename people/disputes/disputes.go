// Package disputes keeps what members report of the epochs of their convos: the authenticator of an
// epoch that they have entered, and commits that they could not process. Two authenticators of one
// epoch are a fork. A commit that more people report than one liar can speak for is disputed.
//
// The server cannot say who is right. It never takes a commit back. A dispute only changes which
// commits come next: external ones, by which everybody enters the present epoch, until all who
// reported are back.
//
// The package owns the tables epoch_reports, forked_epochs, commit_reports and disputes.
package disputes

import (
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

const (
	// KeepEpochs is of how many epochs of a convo reports are taken and kept: the newest ones.
	KeepEpochs = 8
	// Lasts is the longest time that the disputes of a convo are open. It is one time for all
	// disputes that follow each other within Pause.
	Lasts = 10 * time.Minute
	// Pause is how long after its end a dispute still counts against Lasts.
	Pause = time.Hour

	// MaxReason is the longest reason of a report, in characters.
	MaxReason = 64

	// share is the part of the voices that a dispute needs: one in share.
	share = 4
	// fewest is how many voices a dispute needs at least. One liar has one.
	fewest = 2
)

// Person is someone who is or was on the roster of a convo.
type Person struct {
	DID       syntax.DID
	InvitedBy syntax.DID // who added it last; "": not known, or it created the convo
	// Entitled says that the person is a member now, has accepted the convo, and joined before the
	// reported commit.
	Entitled bool
	// Reports says that the person has reported the commit and is not back in the group.
	Reports bool
}

// Count is the result of counting voices.
type Count struct {
	Voices  int // that can report the commit
	Reports int // that have
}

// Disputed reports whether the commit is disputed: at least two voices report it, and at least a
// quarter of all.
func (c Count) Disputed() bool { return c.Reports >= fewest && c.Reports*share >= c.Voices }

// Settled reports whether a dispute is over: at most one voice still reports the commit.
func (c Count) Settled() bool { return c.Reports < fewest }

// CountVoices counts who reports a commit.
//
// Whom the creator added, and the creator, speak for themselves. All others speak with the voice of
// the person through whom they came: the accounts that a person added, those that these added, and
// the person itself are one voice together. So a liar has one voice, however many accounts it adds.
// Only the creator can add voices, and the creator may remove members anyway. The committer is not
// counted.
func CountVoices(creator, committer syntax.DID, people []Person) Count {
	speak := speakers{creator: creator, inviters: make(map[syntax.DID]syntax.DID, len(people)),
		found: make(map[syntax.DID]syntax.DID, len(people))}
	for _, p := range people {
		speak.inviters[p.DID] = p.InvitedBy
	}
	voices := map[syntax.DID]bool{}
	for _, p := range people {
		if !p.Entitled || p.DID == committer {
			continue
		}
		if voice := speak.voiceOf(p.DID); voice != "" {
			voices[voice] = voices[voice] || p.Reports
		}
	}
	c := Count{Voices: len(voices)}
	for _, reports := range voices {
		if reports {
			c.Reports++
		}
	}
	return c
}

// speakers finds the persons with whose voices people speak.
type speakers struct {
	creator  syntax.DID
	inviters map[syntax.DID]syntax.DID
	found    map[syntax.DID]syntax.DID // the answers so far: each chain is followed once
}

// voiceOf returns the person with whose voice did speaks. Accounts that have invited each other in a
// circle have no voice: they could leave and come back to make more of them.
func (s speakers) voiceOf(did syntax.DID) (voice syntax.DID) {
	var way []syntax.DID
	for {
		by, known := s.inviters[did]
		if before, twice := s.found[did]; twice || !known {
			voice = before
			break
		}
		if did == s.creator || by == s.creator || by == "" {
			voice = did
			break
		}
		s.found[did] = "" // so a circle ends here
		way = append(way, did)
		did = by
	}
	for _, passed := range way {
		s.found[passed] = voice
	}
	return voice
}

// Dispute is a dispute that is open.
type Dispute struct {
	Epoch     int64 // that the disputed commit created
	Committer syntax.DID
	Until     time.Time // it ends then, if not before
	Caller    bool      // an open dispute of the convo, this one or another, names the caller
}

// OpenError refuses a commit because of an open dispute.
type OpenError struct{ Dispute }

// Error names the committer and the epoch, and says what to do. Clients behind a PDS have nothing else.
func (e *OpenError) Error() string {
	until := e.Until.UTC().Format(time.RFC3339)
	if e.Caller {
		return fmt.Sprintf("members could not process a commit of yours: you can commit again when they are back, or at %s",
			until)
	}
	return fmt.Sprintf("members could not process the commit of epoch %d by %s: until they are back, or %s, the convo "+
		"takes only external commits; "+
		"read the log, and commit later; if you could not process it, use getGroupInfo and processExternalCommit", e.Epoch,
		e.Committer, until)
}

// TooOld reports whether the convo is so far beyond an epoch that no reports of it are taken.
func TooOld(epoch, current int64) bool { return epoch <= current-KeepEpochs }
