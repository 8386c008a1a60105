package transparency_test

import (
	"testing"
	"time"
)

// A head and a proof of a log that has not grown hash nothing, whatever the last entry is: also when
// the entry was changed and put back. A node that begins hashes everything once, and the entries of
// senders that are new once more.
func TestLastEntryIsHashedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(alice, 3)
	const large = 3 << 20
	w.sendLarge(bob, large)
	hashed := func() (n int64) {
		t.Helper()
		if _, err := w.Head(t.Context(), w.convo, &n); err != nil {
			t.Fatal(err)
		}
		if _, _, err := w.Inclusion(t.Context(), w.convo, 2, 3, &n); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Consistency(t.Context(), w.convo, 2, 3, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := hashed(); n < large || n > 3*large {
		t.Errorf("%d bytes were hashed", n)
	}
	if n := hashed(); n != 0 {
		t.Errorf("%d bytes were hashed again", n)
	}
	w.send(carol, 1)
	if n := hashed(); n == 0 || n > 1000 {
		t.Errorf("%d bytes were hashed for a short entry", n)
	}
	w.exec(`UPDATE messages SET body = body WHERE seq = 5`) // the row is another one, and says the same
	if n := hashed(); n == 0 || n > 1000 {
		t.Errorf("%d bytes were hashed of a row that was written again", n)
	}
	if n := hashed(); n != 0 {
		t.Errorf("%d bytes were hashed again", n)
	}
	if h := w.head(w.Service); h.Root != rootOf(w.leaves()) {
		t.Errorf("the head is %+v", h)
	}
}

// Entries that are larger than a reading may be are read one by one, also by rounds.
func TestLargestEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sendLarge(alice, 9<<20)
	w.head(w.Service)
	w.sendLarge(bob, 9<<20)
	w.sendLarge(alice, 9<<20)
	if h := w.head(w.Service); h.Size != 3 {
		t.Errorf("the head is %+v", h)
	}
	w.sendLarge(bob, 2<<20)
	w.clock = w.clock.Add(5 * time.Second)
	w.AnswerHead(w.convo)
	w.round()
	if h := w.open(w.AnswerHead(w.convo)); h.Size != 4 || h.Root != rootOf(w.leaves()) {
		t.Errorf("the piggybacked head is %+v", h)
	}
	if w.keep(w.node(), 1); w.head(w.node()).Size != 4 {
		t.Error("a node that begins has another head")
	}
}

// A log for which no head is due is not read: neither if it has not grown, nor if it is damaged.
func TestRoundsReadNothingAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad, remove := w.damaged()
	defer remove()
	w.send(alice, 3)
	w.AnswerHead(w.convo)
	w.round()
	w.clock = w.clock.Add(time.Minute)
	w.AnswerHead(bad)
	w.EventHead(w.convo, 3)
	w.round() // the head is old, and the log as it was
	w.exec(`ALTER TABLE messages RENAME TO away`)
	w.exec(`ALTER TABLE log_tiles RENAME TO away_too`)
	for range 4 {
		w.clock = w.clock.Add(time.Second)
		w.AnswerHead(bad)
		w.EventHead(w.convo, 3)
		w.round()
	}
	w.clock = w.clock.Add(time.Second)
	if err := w.RunOnce(t.Context()); err == nil {
		t.Error("the logs are due, and were not read")
	}
	w.exec(`ALTER TABLE away RENAME TO messages`)
	w.exec(`ALTER TABLE away_too RENAME TO log_tiles`)
	w.send(bob, 1)
	w.AnswerHead(w.convo)
	w.clock = w.clock.Add(5 * time.Second)
	w.round()
	if h := w.open(w.AnswerHead(w.convo)); h.Size != 4 {
		t.Errorf("then the head is %+v", h)
	}
}
