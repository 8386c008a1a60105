package transparency_test

import "testing"

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

// Entries that are larger than a reading may be are read one by one, also by a node that begins.
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
	if w.keep(w.node(), 1); w.head(w.node()).Size != 3 {
		t.Error("a node that begins has another head")
	}
}
