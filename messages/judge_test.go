package messages_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/idem"
	"mlsd/messages"
)

// TestJudge: questions are asked in their order. If several refusals fit a draft, it gets
// the first one.
func TestJudge(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	const (
		closed   = `UPDATE convos SET closed_at = now() WHERE id = $1`
		advanced = `UPDATE convos SET epoch = 6 WHERE id = $1`
		left     = `UPDATE members SET left_at = now(), left_seq = 1, left_epoch = 5 WHERE convo_id = $1 AND did =
				'did:plc:bob'`
	)
	otherGroup := func(d *messages.Draft) { d.GroupID = []byte("other") }
	for name, c := range map[string]struct {
		sender syntax.DID
		epoch  int64                 // of the ciphertext; the convo's is 5
		change func(*messages.Draft) // nil: none
		stored bool                  // the same request was appended before
		state  string                // of the convo, set after that
		locked bool                  // by another transaction
		want   error                 // nil: it is appended, or repeated if it was stored
	}{
		"appended":            {sender: bob, epoch: 5},
		"in the epoch window": {sender: bob, epoch: 4},
		"stale epoch": {sender: bob, epoch: 3,
			want: &messages.EpochMismatchError{Epoch: 3, Current: 5}},
		"epoch ahead": {sender: bob, epoch: 6,
			want: &messages.EpochMismatchError{Epoch: 6, Current: 5}},
		"wrong group before the epoch": {sender: bob, epoch: 1, change: otherGroup, want: messages.ErrWrongGroup},
		// M3
		"closed before the group": {sender: bob, epoch: 1, change: otherGroup, state: closed, want: messages.ErrConvoClosed},
		"no convo": {sender: bob, epoch: 5,
			change: func(d *messages.Draft) { d.ConvoID = uuid.New() }, want: messages.ErrConvoNotFound},
		"never a member":                     {sender: mallory, epoch: 5, want: messages.ErrConvoNotFound},
		"never a member of a locked convo":   {sender: mallory, epoch: 5, locked: true, want: messages.ErrConvoNotFound},
		"former member":                      {sender: carol, epoch: 5, want: messages.ErrNotMember},
		"former member of a locked convo":    {sender: carol, epoch: 5, locked: true, want: messages.ErrNotMember},
		"former member of a closed convo":    {sender: carol, epoch: 5, state: closed, want: messages.ErrNotMember},
		"retry of a former member":           {sender: bob, epoch: 5, stored: true, state: left},
		"retry after the epoch moved":        {sender: bob, epoch: 5, stored: true, state: advanced},
		"retry after the closing":            {sender: bob, epoch: 5, stored: true, state: closed},
		"busy":                               {sender: bob, epoch: 5, locked: true, want: messages.ErrBusy},
		"busy before the key":                {sender: bob, epoch: 5, stored: true, locked: true, want: messages.ErrBusy},
		"retry of a former member, unlocked": {sender: bob, epoch: 5, stored: true, state: left, locked: true},
	} {
		t.Run(name, func(t *testing.T) {
			convo := uuid.Must(uuid.NewV7())
			f.addConvo(t, convo)
			d := f.draftAt(convo, c.sender, "k", "x", c.epoch)
			if c.change != nil {
				c.change(&d)
			}
			if c.stored {
				if r := f.append(t, d)[0]; r.Err != nil {
					t.Fatal(r.Err)
				}
			}
			if c.state != "" {
				if _, err := f.db.Exec(t.Context(), c.state, convo); err != nil {
					t.Fatal(err)
				}
			}
			if c.locked {
				defer f.lock(t, lockConvo, convo)()
			}
			r := f.TryWrite(t.Context(), d)[0]
			if fmt.Sprint(r.Err) != fmt.Sprint(c.want) {
				t.Fatalf("%v, want %v", r.Err, c.want)
			}
			if c.want == nil && (r.Seq != 1 || r.Replayed != c.stored) {
				t.Errorf("%+v", r)
			}
			if n := f.count(t, `SELECT count(*) FROM messages WHERE convo_id = $1`, convo); n == 1 != (c.want == nil ||
				c.stored) {
				t.Errorf("%d messages", n)
			}
		})
	}
}

// TestJudgeBatch: of the drafts of one batch under one key the first that may be appended is. The
// next ones repeat it or conflict with it. An earlier one that is refused changes nothing.
func TestJudgeBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0)
	convo, uri := f.convos[0], "at://x"
	other := f.draft(convo, alice, "k", "y")
	other.EmbedURI = &uri
	got := f.append(t,
		f.draftAt(convo, alice, "k", "stale", 4),
		f.draft(convo, alice, "k", "x"),
		f.draft(convo, alice, "k", "x"),
		other,
		f.draftAt(convo, alice, "k", "stale", 4),
		f.draft(convo, bob, "k", "x"),
		f.draft(convo, alice, "l", "x"))
	for i, want := range []struct {
		seq      int64 // 0: refused
		replayed bool
		fields   []string // of a conflict
	}{
		{},
		{seq: 1},
		{seq: 1, replayed: true},
		{fields: []string{"ciphertext", "embedUri"}},
		{fields: []string{"ciphertext", "epoch"}},
		{seq: 2},
		{seq: 3},
	} {
		r := got[i]
		var conflict *idem.ConflictError
		var fields []string
		if errors.As(r.Err, &conflict) {
			fields = conflict.Fields
			if !conflict.At.Equal(got[1].At) {
				t.Errorf("%d: first used at %v", i, conflict.At)
			}
		}
		if r.Seq != want.seq || r.Replayed != want.replayed || !cmp.Equal(fields, want.fields) {
			t.Errorf("%d: %+v, fields %q", i, r, fields)
		}
	}
	if !errors.As(got[0].Err, new(*messages.EpochMismatchError)) {
		t.Errorf("%+v", got[0])
	}
	if n := f.count(t, `SELECT last_seq FROM convos WHERE id = $1`, convo); n != 3 {
		t.Errorf("last_seq is %d", n)
	}
	if n := f.count(t, `SELECT count(DISTINCT xmin::text) FROM messages WHERE convo_id = $1`, convo); n != 1 {
		t.Errorf("the batch was split into %d transactions", n)
	}
}
