package api_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/events"
	"mlsd/events/signals"
	"mlsd/internal/mlstest"
	"mlsd/people/consent"
)

// signalBook is a Signaller that keeps what it is given.
type signalBook struct {
	mu   sync.Mutex
	busy bool
	sent []signals.Signal
}

func (b *signalBook) Busy() bool { return b.busy }

func (b *signalBook) Send(s signals.Signal) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, s)
	return true
}

// signal is a signal to a convo.
func (u *user) signal(c *convo, what string) *mlsapi.SendSignalInput {
	return &mlsapi.SendSignalInput{ConvoID: c.id, Payload: mlstest.Message(c.group, c.epoch, what)}
}

// A member's signal is passed on as it is, with the names of those who have blocked it, whom it
// does not learn of. Nothing of it is stored but that its token was used.
func TestSendSignal(t *testing.T) {
	t.Parallel()
	book := &signalBook{}
	w := newWorld(t, func(w *world) { w.signals = book })
	alice, bob, carol, dave := w.user(), w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	carol.accept(c)
	carol.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: alice.did()}).ok()
	dave.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: alice.did()}).ok() // no member
	before := w.rows()
	in := alice.signal(c, "typing")
	if out := read[mlsapi.SendSignalOutput](t, alice.post(mlsapi.NSIDSendSignal, in).ok()); !out.Carried {
		t.Error("it was not carried")
	}
	want := []signals.Signal{{ConvoID: uuid.MustParse(c.id), Sender: alice.did(), Payload: in.Payload,
		Hidden: []syntax.DID{carol.did()}}}
	if diff := cmp.Diff(want, book.sent); diff != "" {
		t.Errorf("passed on (-want +got):\n%s", diff)
	}
	before["used_tokens"]++
	if diff := cmp.Diff(before, w.rows()); diff != "" {
		t.Errorf("rows of tables (-before +after):\n%s", diff)
	}
}

// Whom more than 16 members have blocked, nobody hears. It gets the answers of everybody else,
// which are those of the limits.
func TestSignalOfABlockedMember(t *testing.T) {
	t.Parallel()
	book := &signalBook{}
	w := newWorld(t, func(w *world) { w.signals = book })
	alice := w.user()
	others := make([]*user, 17)
	for i := range others {
		others[i] = w.user()
	}
	c := alice.create(others...)
	for i, u := range others {
		out := read[mlsapi.SendSignalOutput](t, alice.post(mlsapi.NSIDSendSignal, alice.signal(c, fmt.Sprint(i))).ok())
		if !out.Carried || len(book.sent) != i+1 || len(book.sent[i].Hidden) != i {
			t.Fatalf("after %d blocks: %+v, %+v", i, out, book.sent)
		}
		u.accept(c)
		u.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: alice.did()}).ok()
	}
	out := read[mlsapi.SendSignalOutput](t, alice.post(mlsapi.NSIDSendSignal, alice.signal(c, "x")).ok())
	if last := len(book.sent) - 1; !out.Carried || last != len(others) || !book.sent[last].Nobody {
		t.Errorf("%+v, and the last is %+v", out, book.sent[last])
	}
}

// A signal is refused as a message is. A busy node drops it before it looks at the convo.
func TestRefusedSignals(t *testing.T) {
	t.Parallel()
	book := &signalBook{}
	w := newWorld(t, func(w *world) { w.signals = book })
	alice, bob, outsider := w.user(), w.user(), w.user()
	c := alice.create(bob)
	post := func(u *user, change func(in *mlsapi.SendSignalInput)) answer {
		in := u.signal(c, "typing")
		change(in)
		return u.post(mlsapi.NSIDSendSignal, in)
	}
	same := func(*mlsapi.SendSignalInput) {}
	payload := func(p []byte) func(*mlsapi.SendSignalInput) {
		return func(in *mlsapi.SendSignalInput) { in.Payload = p }
	}
	post(outsider, same).fails(http.StatusNotFound, mlsapi.ErrConvoNotFound)
	post(alice, func(in *mlsapi.SendSignalInput) { in.ConvoID = uuid.NewString() }).fails(http.StatusNotFound,
		mlsapi.ErrConvoNotFound)
	post(alice, payload([]byte("hello"))).fails(http.StatusBadRequest, mlsapi.ErrInvalidMessage)
	post(alice, payload(mlstest.Commit(c.group, c.epoch, "x"))).fails(http.StatusBadRequest, mlsapi.ErrInvalidMessage)
	post(alice, payload(mlstest.Message(newGroup(t), c.epoch, "x"))).fails(http.StatusBadRequest, mlsapi.ErrInvalidMessage)
	post(alice, payload(mlstest.Message(c.group, c.epoch+1, "x"))).fails(http.StatusConflict, mlsapi.ErrEpochMismatch)
	post(alice, payload(mlstest.Message(c.group, c.epoch,
		strings.Repeat("x", 1024)))).fails(http.StatusRequestEntityTooLarge, mlsapi.ErrMessageTooLarge)
	bob.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	post(bob, same).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	if _, err := w.db.Exec(t.Context(), `UPDATE convos SET closed_at = now() WHERE id = $1`, c.id); err != nil {
		t.Fatal(err)
	}
	post(alice, same).fails(http.StatusConflict, mlsapi.ErrConvoClosed)
	book.busy = true
	for _, u := range []*user{alice, bob, outsider} {
		if out := read[mlsapi.SendSignalOutput](t, post(u, same).ok()); out.Carried {
			t.Error("a busy node carries a signal")
		}
	}
	if len(book.sent) != 0 {
		t.Errorf("passed on: %+v", book.sent)
	}
}

// What is not kept has no cursor in either form of the stream, and no id.
func TestFramesOfSignals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h, alice := w.pretend(), w.user()
	payload := []byte{1, 2, 3}
	typing := &events.Event{ConvoID: uuid.Max,
		Signal: &signals.Signal{ConvoID: uuid.Max, Sender: "did:plc:bob", Payload: payload}}
	moved := &events.Event{ConvoID: uuid.Max,
		Signal: &signals.Signal{ConvoID: uuid.Max, Moves: []signals.Move{{DID: "did:plc:bob", Read: 3, Delivered: 4}}}}
	k := alice.dial()
	s := h.next(t)
	s.events <- typing
	k.wants(map[string]any{"op": int64(1), "t": "#typingEvent"},
		map[string]any{"convoId": uuid.Max.String(), "did": "did:plc:bob", "payload": payload})
	s.events <- moved
	k.wants(map[string]any{"op": int64(1), "t": "#cursorEvent"}, map[string]any{
		"convoId": uuid.Max.String(),
		"cursors": []any{map[string]any{"did": "did:plc:bob", "read": int64(3), "delivered": int64(4)}},
	})
	stream := alice.stream(nil)
	s = h.next(t)
	s.events <- typing
	s.events <- welcomeEvent(7)
	s.events <- moved
	for _, want := range []sent{
		{event: "typingEvent", data: typed("typingEvent") + `"convoId":"` + uuid.Max.String() +
			`","cursor":"5","did":"did:plc:bob","isTyping":false,"payload":{"$bytes":"` +
			base64.RawStdEncoding.EncodeToString(payload) + `"}}`},
		{event: "welcomeEvent", id: "7",
			data: typed("welcomeEvent") + `"convoId":"` + uuid.Max.String() +
				`","createdAt":"2026-11-20T10:20:30.400Z","cursor":"7","deviceId":"phone","epoch":2,"keyPackageRef":"00ff"}`},
		{event: "cursorEvent", data: typed("cursorEvent") + `"convoId":"` + uuid.Max.String() +
			`","cursor":"7","cursors":[{"delivered":4,"did":"did:plc:bob","read":3}]}`},
	} {
		if got := stream.event(); got != want {
			t.Errorf("sent %+v, want %+v", got, want)
		}
	}
}

// Members who share their cursors see each other's, and nobody else sees any.
func TestGetCursors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol, dave, erin := w.user(), w.user(), w.user(), w.user(), w.user()
	people := map[syntax.DID]string{alice.did(): "alice", bob.did(): "bob", carol.did(): "carol", dave.did(): "dave",
		erin.did(): "erin"}
	c := alice.create(bob, carol, dave, erin)
	for _, u := range []*user{bob, carol, dave} { // erin's membership stays a request
		u.post(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.id}).ok()
	}
	for range 5 {
		alice.send(c, "hello")
	}
	sees := func(u *user) string {
		t.Helper()
		out := read[mlsapi.GetCursorsOutput](t, u.get(mlsapi.NSIDGetCursors, "convoId", c.id).ok())
		names := map[string]string{}
		for _, v := range out.Cursors {
			names[people[v.DID]] = fmt.Sprintf("%d/%d", v.Read, v.Delivered)
		}
		return fmt.Sprint(names, " ", out.Sharing)
	}
	wants := func(u *user, want string) {
		t.Helper()
		if got := sees(u); got != want {
			t.Errorf("%s sees %s, want %s", people[u.did()], got, want)
		}
	}
	share := func(u *user, with string) {
		t.Helper()
		u.post(mlsapi.NSIDSetCursorPolicy, &mlsapi.SetCursorPolicyInput{ShareCursors: with}).ok()
		if out := read[mlsapi.GetCursorPolicyOutput](t, u.get(mlsapi.NSIDGetCursorPolicy).ok()); out.ShareCursors != with {
			t.Errorf("the policy is %q, want %q", out.ShareCursors, with)
		}
	}
	wants(alice, "map[] false")
	for _, u := range []*user{alice, bob, dave, erin} {
		share(u, "members")
	}
	move := func(u *user, read_, delivered int64) {
		t.Helper()
		out := read[mlsapi.UpdateCursorOutput](t,
			u.post(mlsapi.NSIDUpdateCursor, &mlsapi.UpdateCursorInput{ConvoID: c.id, Seq: read_, Delivered: &delivered}).ok())
		if out.Seq < read_ || *out.Delivered < max(read_, delivered) {
			t.Errorf("moved to %d and %d", out.Seq, *out.Delivered)
		}
	}
	move(alice, 1, 3)
	move(bob, 4, 2)
	move(carol, 5, 5)
	move(erin, 5, 5)
	wants(alice, "map[alice:1/3 bob:4/4 dave:0/0] true")
	wants(carol, "map[] false")
	wants(erin, "map[] true") // who has not accepted sees nobody
	dave.post(mlsapi.NSIDBlockActor, &mlsapi.BlockActorInput{DID: bob.did()}).ok()
	wants(bob, "map[alice:1/3 bob:4/4] true")
	wants(dave, "map[alice:1/3 dave:0/0] true")
	wants(alice, "map[alice:1/3 bob:4/4 dave:0/0] true")
	share(bob, "nobody")
	wants(alice, "map[alice:1/3 dave:0/0] true")
	wants(bob, "map[] false")
	dave.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	wants(alice, "map[alice:1/3] true")
	dave.get(mlsapi.NSIDGetCursors, "convoId", c.id).fails(http.StatusForbidden, mlsapi.ErrNotMember)
	alice.post(mlsapi.NSIDSetCursorPolicy,
		&mlsapi.SetCursorPolicyInput{ShareCursors: "friends"}).fails(http.StatusBadRequest, "InvalidRequest")
	if bytes.Contains(alice.get(mlsapi.NSIDGetCursors, "convoId", c.id).ok(), []byte("At\"")) {
		t.Error("it says when a cursor has moved")
	}
}

// Who has left, or shares with nobody any more, is not seen: not either by a cursor that moved
// before.
func TestViewersAfterWithdrawal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	alice, bob, carol := w.user(), w.user(), w.user()
	c := alice.create(bob, carol)
	for _, u := range []*user{bob, carol} {
		u.post(mlsapi.NSIDAcceptConvo, &mlsapi.AcceptConvoInput{ConvoID: c.id}).ok()
	}
	share := func(u *user, with string) {
		u.post(mlsapi.NSIDSetCursorPolicy, &mlsapi.SetCursorPolicyInput{ShareCursors: with}).ok()
	}
	sees := func(mover *user) bool {
		t.Helper()
		v, err := consent.ViewersOf(t.Context(), w.db, uuid.MustParse(c.id), []syntax.DID{mover.did()},
			[]syntax.DID{alice.did()})
		if err != nil {
			t.Fatal(err)
		}
		return v.See(alice.did(), mover.did())
	}
	for _, u := range []*user{alice, bob, carol} {
		share(u, "members")
	}
	if !sees(bob) || !sees(carol) {
		t.Error("who shares is not seen")
	}
	share(bob, "nobody")
	carol.post(mlsapi.NSIDLeaveConvo, &mlsapi.LeaveConvoInput{ConvoID: c.id}).ok()
	if sees(bob) || sees(carol) {
		t.Error("who shares no more, or has left, is seen")
	}
}

// rows are how many rows each table has.
func (w *world) rows() map[string]int64 {
	w.t.Helper()
	rows, err := w.db.Query(w.t.Context(), `
		SELECT relname, (xpath('/row/n/text()', query_to_xml(format('SELECT count(*) AS n FROM %I', relname), false, true,
			'')))[1]::text::bigint
		FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	all := map[string]int64{}
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			w.t.Fatal(err)
		}
		all[name] = n
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return all
}
