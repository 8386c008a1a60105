package clientsim

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

const (
	vigilant = syntax.DID("did:plc:vigilant")
	other    = syntax.DID("did:plc:other")
)

// soundStream is what a flawless server tells somebody who is in a convo from its beginning, and added to another one that it is
// removed from, with the chronicle of both.
func soundStream(t *testing.T) (*Chronicle, []happening) {
	t.Helper()
	c := NewChronicle()
	var told []happening
	tell := func(h happening) {
		h.cursor = int64(10 * (len(told) + 1))
		h.at = time.Now()
		told = append(told, h)
	}
	entry := func(convo, kind string, seq int64, heard bool) {
		h := happening{kind: kind, convo: convo, seq: seq, epoch: 1, sender: other.String(), body: fmt.Append(nil, convo, seq)}
		if kind == toldMessage {
			h.id = fmt.Sprint("id of ", convo, seq)
		}
		if c.Entry(convo, seq, markOf(kind == toldCommit, h.id, h.sender, h.epoch, sha256.Sum256(h.body))) {
			t.Fatalf("seq %d of %s twice", seq, convo)
		}
		if heard {
			tell(h)
		}
	}
	turned := func(convo string, did syntax.DID, change string, seq int64) {
		tell(happening{kind: toldMembership, convo: convo, did: did.String(), by: other.String(), change: change, seq: seq})
	}
	c.Begun("one", other, other, vigilant)
	turned("one", vigilant, "joined", 0)
	entry("one", toldMessage, 1, true)
	entry("one", toldMessage, 2, true)
	c.Begun("two", other, other)
	entry("two", toldMessage, 1, false)
	entry("two", toldCommit, 2, false)
	c.Joined("two", other, 2, vigilant)
	turned("two", vigilant, "joined", 2)
	c.Welcomed(vigilant, "two", "phone", 1)
	tell(happening{kind: toldWelcome, convo: "two", device: "phone", epoch: 1})
	entry("two", toldMessage, 3, true)
	c.Gone("one", "left", other, other, 2)
	turned("one", other, "left", 2)
	entry("two", toldCommit, 4, true)
	c.Gone("two", "removed", other, vigilant, 4)
	turned("two", vigilant, "removed", 4)
	entry("two", toldMessage, 5, false)
	entry("one", toldMessage, 3, true)
	return c, told
}

func judged(c *Chronicle, told []happening) (found []Violation, missing int64) {
	v := NewVigil("vigilant", vigilant, "phone")
	for _, h := range told {
		v.See(h)
	}
	missing = v.Missing(c)
	return v.Judge(c), missing
}

func TestVigilPassesASoundStream(t *testing.T) {
	t.Parallel()
	c, told := soundStream(t)
	found, missing := judged(c, told)
	if len(found) > 0 || missing != 0 {
		t.Errorf("a sound stream: %d missing, violations %v", missing, found)
	}
}

// A check that cannot fail is worthless: each of these is one flaw of a server.
func TestVigilSeesSeededViolations(t *testing.T) {
	t.Parallel()
	drop := func(i int) func([]happening) []happening {
		return func(told []happening) []happening { return slices.Delete(told, i, i+1) }
	}
	tests := map[string]struct {
		seed func([]happening) []happening
		kind ViolationKind
		want string
	}{
		"a lost message":      {drop(2), Lost, "seq 3 comes after 1"},
		"a lost last message": {drop(len9 - 1), Lost, "the log goes to seq 3 for it, and it was told up to 2"},
		"a lost joining":      {drop(0), Broken, "comes to one who is not in the convo"},
		"a lost late joining": {drop(3), Broken, "the message at seq 3 comes to one who is not in the convo"},
		"a lost Welcome":      {drop(4), Lost, "a welcome event was not told: device phone, epoch 1"},
		"a Welcome told twice": {func(told []happening) []happening {
			again := told[4]
			again.cursor++
			return slices.Insert(told, 5, again)
		}, Duplicated, "a Welcome of device phone into epoch 1 was told once too often"},
		"a lost change":          {drop(6), Lost, "the roster changed 2 times, and it was told of 1"},
		"a lost removal":         {drop(8), Lost, "that it left at seq 4 was not told"},
		"a lost removing commit": {drop(7), Lost, "did:plc:vigilant removed when the log ended at seq 4, and seq 3 was the last told"},
		"a repeated event": {func(told []happening) []happening {
			return slices.Insert(told, 2, told[1])
		}, Duplicated, "cursor 20 (message) comes after 20"},
		"a message under two cursors": {func(told []happening) []happening {
			again := told[1]
			again.cursor++
			return slices.Insert(told, 2, again)
		}, Duplicated, "seq 1 comes after 1"},
		"two events the wrong way round": {func(told []happening) []happening {
			told[1], told[2] = told[2], told[1]
			return told
		}, Duplicated, "cursor 20 (message) comes after 30"},
		"two entries the wrong way round": {func(told []happening) []happening {
			told[1], told[2] = told[2], told[1]
			told[1].cursor, told[2].cursor = 20, 30
			return told
		}, Lost, "seq 2 comes after 0"},
		"a message after the removal": {func(told []happening) []happening {
			return append(told, happening{cursor: 1000, kind: toldMessage, convo: "two", seq: 5, id: "x", sender: "y"})
		}, Broken, "the message at seq 5 comes to one who is not in the convo"},
		"a convo of others": {func(told []happening) []happening {
			return append(told, happening{cursor: 1000, kind: toldMessage, convo: "three", seq: 1, id: "x", sender: "y"})
		}, Broken, "the message at seq 1 comes to one who is not in the convo"},
		"others' roster": {func(told []happening) []happening {
			return append(told, happening{cursor: 1000, kind: toldMembership, convo: "three", did: other.String(), change: "left"})
		}, Broken, "comes to one who is not in the convo"},
		"a joining that never was": {func(told []happening) []happening {
			return append(told, happening{cursor: 1000, kind: toldMembership, convo: "three", did: vigilant.String(), change: "joined"})
		}, Broken, "it was never in this convo"},
		"the commit that added it": {func(told []happening) []happening {
			return slices.Insert(told, 4, happening{cursor: told[3].cursor + 1, kind: toldCommit, convo: "two", seq: 2, sender: "y"})
		}, Broken, "the commit at seq 2 is from before it joined, at 2"},
		"a change before its commit": {func(told []happening) []happening {
			told[7], told[8] = told[8], told[7]
			told[7].cursor, told[8].cursor = told[8].cursor, told[7].cursor
			return told
		}, Lost, "did:plc:vigilant removed when the log ended at seq 4, and seq 3 was the last told"},
		"another's Welcome": {func(told []happening) []happening {
			told[4].device = "another"
			return told
		}, Broken, "a welcome event of somebody else's device another"},
		"other bytes": {func(told []happening) []happening {
			told[2].body = []byte("forged")
			return told
		}, Broken, "seq 2 is not what was written there"},
		"another sender": {func(told []happening) []happening {
			told[1].sender = vigilant.String()
			return told
		}, Broken, "seq 1 is not what was written there"},
		"a message of nobody": {func(told []happening) []happening {
			return append(told, happening{cursor: 1000, kind: toldMessage, convo: "one", seq: 4, id: "x", sender: "y"})
		}, Broken, "the log goes to seq 3 for it, and it was told up to 4"},
		"too old": {func(told []happening) []happening {
			return slices.Insert(told, 0, happening{kind: toldInfo, name: "OutdatedCursor"})
		}, Broken, "OutdatedCursor, and nothing is too old"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, told := soundStream(t)
			found, _ := judged(c, tt.seed(told))
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Kind == tt.kind && strings.Contains(v.What, tt.want) }) {
				t.Errorf("want a %s with %q, got %v", tt.kind, tt.want, found)
			}
		})
	}
}

// len9 is how many events a sound stream has.
const len9 = 10

func TestVigilAtTheSeam(t *testing.T) {
	t.Parallel()
	c, told := soundStream(t)
	v := NewVigil("vigilant", vigilant, "phone")
	if _, ok := v.Resume(true); ok {
		t.Error("a cursor before anything was told")
	}
	for _, h := range told[:3] {
		v.See(h)
	}
	if cursor, ok := v.Resume(true); !ok || cursor != 30 {
		t.Errorf("Resume(true) = %d, %t, want 30", cursor, ok)
	}
	if v.See(told[2]) {
		t.Error("the event at the seam is called new")
	}
	v.See(told[3])
	if cursor, ok := v.Resume(false); !ok || cursor != 41 {
		t.Errorf("Resume(false) = %d, %t, want 41", cursor, ok)
	}
	for _, h := range told[4:] {
		v.See(h)
	}
	if found := v.Judge(c); len(found) > 0 {
		t.Errorf("a sound stream on three connections: %v", found)
	}

	for name, tt := range map[string]struct {
		again bool
		next  []happening
		kind  ViolationKind
		want  string
	}{
		"not told again":       {true, told[3:4], Lost, "asked from cursor 30 on, it begins with 40"},
		"told again unasked":   {false, told[2:3], Duplicated, "cursor 30 (message) comes after 30"},
		"below what was asked": {false, told[1:2], Duplicated, "cursor 20 (message) comes after 30"},
		"told again twice":     {true, []happening{told[2], told[2]}, Duplicated, "cursor 30 (message) comes after 30"},
		"another at the seam":  {true, []happening{{cursor: 30, kind: toldCommit, convo: "one", seq: 2}}, Broken, "cursor 30 was a message and is a commit"},
	} {
		v := NewVigil("vigilant", vigilant, "phone")
		for _, h := range told[:3] {
			v.See(h)
		}
		v.Resume(tt.again)
		for _, h := range tt.next {
			v.See(h)
		}
		if !slices.ContainsFunc(v.found, func(v Violation) bool { return v.Kind == tt.kind && strings.Contains(v.What, tt.want) }) {
			t.Errorf("%s: want a %s with %q, got %v", name, tt.kind, tt.want, v.found)
		}
	}
}
