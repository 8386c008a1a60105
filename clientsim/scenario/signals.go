package scenario

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/errs"
)

// signalTimeout is how long a signal may take to reach everybody who gets it.
const signalTimeout = time.Minute

// signalTest is a convo whose members are connected to two servers.
type signalTest struct {
	*streamTest
	convo                   string
	alice, bob, carol, dave *client.Phone
	outsider                *client.Phone
	receivers               map[string]*signalReceiver
}

// signalReceiver is a subscriber that records what it has received.
type signalReceiver struct {
	*client.Subscriber
	mu      sync.Mutex // guards the fields below
	events  int        // number of events that the server keeps
	removed bool
	typing  [][]byte
	cursors []xrpc.MemberCursor
}

// Signals makes members signal and move their cursors, on two servers. Each signal reaches all
// connected members, on both servers and with all their devices. It does not reach people who were
// removed, who were never members, or who have blocked its sender. A moved cursor reaches the
// members who share their own cursor. The database holds nothing of a signal.
func Signals(ctx context.Context, w *testbed.World) {
	w.WithSibling(ctx, func(_ *testbed.Proc, other *xrpc.Client) {
		withStreamTest(ctx, w, func(s *streamTest) {
			t := &signalTest{streamTest: s, receivers: map[string]*signalReceiver{}}
			t.begin(ctx, other)
			t.signalsArrive(ctx, other)
			t.cursorsArrive(ctx, other)
			t.removedReceivesNothing(ctx)
		})
	})
}

// begin makes the convo and waits until all are connected.
func (t *signalTest) begin(ctx context.Context, other *xrpc.Client) {
	phones := Must(t.w.Phones(ctx, 5))
	t.alice, t.bob, t.carol, t.dave, t.outsider = phones[0], phones[1], phones[2], phones[3], phones[4]
	t.convo = t.create(ctx, t.alice, t.bob, t.carol, t.dave)
	t.expectLowPackages(t.bob, t.carol, t.dave)
	Must(t.dave.Net.Do(ctx, t.dave.Account, xrpc.BlockCall(t.alice.Account.DID, xrpc.NewKey())))
	here, there := []*xrpc.Client{t.w.Net}, []*xrpc.Client{other}
	for _, e := range []struct {
		name  string
		phone *client.Phone
		nodes []*xrpc.Client
		sse   bool
	}{
		{"alice", t.alice, here, false}, {"bob", t.bob, here, false}, {"bob's browser", t.bob, there, true},
		{"carol", t.carol, there, false}, {"dave", t.dave, here, false}, {"outsider", t.outsider, there, false},
	} {
		t.listen(e.name, e.phone, e.nodes, e.sse)
	}
	all := make([]*client.Subscriber, 0, len(t.receivers))
	for _, e := range t.receivers {
		all = append(all, e.Subscriber)
	}
	Check(t.subscribers.Listen(all...))
	t.everyoneWrites(ctx, t.convo, "connected", t.alice, t.bob)
	t.await(ctx, "the last message", func(e *signalReceiver) bool { return e.Observer.Missing(t.history) == 0 })
}

func (t *signalTest) listen(name string, p *client.Phone, nodes []*xrpc.Client, sse bool) {
	e := &signalReceiver{Subscriber: t.subscriber(name, p.Account, p)}
	e.Nodes, e.ServerSent = nodes, sse
	e.OnEvent = func(h *xrpc.Event, _ time.Time, _ bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events++
		e.removed = e.removed || h.Kind == xrpc.EventMembership && h.DID == e.Account.DID.String() &&
			h.Change == mlsapi.MembershipEventChangeRemoved
	}
	e.OnSignal = func(h *xrpc.Event, _ time.Time) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if h.Kind == xrpc.EventTyping {
			e.typing = append(e.typing, h.Payload)
		}
		e.cursors = append(e.cursors, h.Cursors...)
	}
	t.receivers[name] = e
}

// await waits until a condition holds for all subscribers.
func (t *signalTest) await(ctx context.Context, what string, holds func(*signalReceiver) bool) {
	var late string
	err := xrpc.Until(ctx, signalTimeout, func() (bool, error) {
		for name, e := range t.receivers {
			if !holds(e) {
				late = name
				return false, nil
			}
		}
		return true, nil
	})
	Check(errs.Wrap(err, "%s: %s", what, late))
}

// signal makes a phone encrypt a signal and send it to a server.
func (t *signalTest) signal(ctx context.Context, p *client.Phone, to *xrpc.Client, what string) (payload []byte,
	err error) {
	defer Catch(&err)
	group := Must(p.Group(t.convo))
	payload = Must(group.Encrypt([]byte(what)))
	answer := Must(to.Once(ctx, p.Account, xrpc.SignalCall(t.convo, payload)))
	out, err := xrpc.Decode[mlsapi.SendSignalOutput](answer.Body)
	if err == nil && !out.Carried {
		t.w.Broken("the signal %q was dropped", what)
	}
	return payload, err
}

// has reports whether a subscriber has received a signal.
func (e *signalReceiver) has(payload []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.typing, func(p []byte) bool { return bytes.Equal(p, payload) })
}

// expect waits until the named subscribers have received a signal, and reports other subscribers
// that have received it.
func (t *signalTest) expect(ctx context.Context, payload []byte, names ...string) {
	t.await(ctx, "a signal", func(e *signalReceiver) bool { return !slices.Contains(names, e.Name) || e.has(payload) })
	for name, e := range t.receivers {
		if !slices.Contains(names, name) && e.has(payload) {
			t.w.Broken("%s has received a signal that is not for it", name)
		}
	}
	tables, err := t.w.Server.Traces(ctx, payload)
	if len(tables) > 0 {
		t.w.Broken("a signal is stored in %v", tables)
	}
	Check(err)
}

// signalsArrive makes members signal on each server.
func (t *signalTest) signalsArrive(ctx context.Context, other *xrpc.Client) {
	for i, to := range []*xrpc.Client{t.w.Net, other} {
		payload := Must(t.signal(ctx, t.alice, to, fmt.Sprintf("alice types %d", i)))
		t.expect(ctx, payload, "alice", "bob", "bob's browser", "carol")
		payload = Must(t.signal(ctx, t.bob, to, fmt.Sprintf("bob types %d", i)))
		t.expect(ctx, payload, "alice", "bob", "bob's browser", "carol", "dave")
	}
	if _, err := t.signal(ctx, t.outsider, t.w.Net, "who is there?"); err == nil {
		t.w.Broken("an outsider has a group to encrypt for")
	}
	_, err := t.w.Net.Once(ctx, t.outsider.Account, xrpc.SignalCall(t.convo, t.receivers["bob"].typing[0]))
	if name := xrpc.ErrorName(err); name != mlsapi.ErrConvoNotFound {
		t.w.Broken("an outsider's signal was answered with %q, %v", name, err)
	}
	// The check finds what the database stores, so the check can fail.
	d := Must(t.alice.DraftSend(t.convo, "a message"))
	kept := Must(mlsapi.DecodeSendMessageInput(d.Call.Body))
	Check(t.alice.Flush(ctx))
	tables, err := t.w.Server.Traces(ctx, kept.Ciphertext)
	if err == nil && !slices.Contains(tables, "messages") {
		t.w.Broken("a message is stored in %v", tables)
	}
	Check(err)
}

// cursorsArrive makes members share and move their cursors.
func (t *signalTest) cursorsArrive(ctx context.Context, other *xrpc.Client) {
	for _, p := range []*client.Phone{t.alice, t.bob, t.dave} { // not carol; dave has blocked alice
		Must(p.Net.Do(ctx, p.Account, xrpc.ShareCursorsCall(mlsapi.SetCursorPolicyInputShareCursorsMembers, xrpc.NewKey())))
	}
	alice, bob := t.alice.Account.DID, t.bob.Account.DID
	Must(t.w.Net.Do(ctx, t.alice.Account, xrpc.ProgressCall(t.convo, 0, 1)))
	t.seeCursor(ctx, xrpc.MemberCursor{DID: alice.String(), Delivered: 1}, "alice", "bob", "bob's browser")
	t.bob.Net = other
	defer func() { t.bob.Net = t.w.Net }()
	Check(t.bob.MarkRead(ctx, t.convo, 2))
	t.seeCursor(ctx, xrpc.MemberCursor{DID: bob.String(), Read: 2, Delivered: 2}, "alice", "bob", "bob's browser", "dave")
	for _, c := range []struct {
		by      *client.Phone
		want    []syntax.DID
		sharing bool
	}{{t.alice, []syntax.DID{alice, bob}, true}, {t.carol, nil, false},
		{t.dave, []syntax.DID{bob, t.dave.Account.DID}, true}} {
		answer := Must(other.Once(ctx, c.by.Account, xrpc.CursorsCall(t.convo)))
		out := Must(xrpc.Decode[mlsapi.GetCursorsOutput](answer.Body))
		var got []syntax.DID
		for _, v := range out.Cursors {
			got = append(got, v.DID)
		}
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) || out.Sharing != c.sharing {
			t.w.Broken("%s sees the cursors of %v, want %v", c.by.Name, got, c.want)
		}
	}
}

// seeCursor waits until the named subscribers have seen a cursor, and reports other subscribers
// that have seen it.
func (t *signalTest) seeCursor(ctx context.Context, at xrpc.MemberCursor, names ...string) {
	saw := func(e *signalReceiver) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return slices.Contains(e.cursors, at)
	}
	t.await(ctx, "a cursor", func(e *signalReceiver) bool { return !slices.Contains(names, e.Name) || saw(e) })
	for name, e := range t.receivers {
		if !slices.Contains(names, name) && saw(e) {
			t.w.Broken("%s sees a cursor that is not for it", name)
		}
	}
}

// removedReceivesNothing removes carol. When carol knows of it, a member signals.
func (t *signalTest) removedReceivesNothing(ctx context.Context) {
	old := Must(t.carol.Group(t.convo))
	stale := Must(old.Encrypt([]byte("carol types")))
	Check(t.alice.Remove(ctx, t.convo, t.carol.Account.DID))
	t.await(ctx, "carol's removal", func(e *signalReceiver) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.Name != "carol" || e.removed
	})
	payload := Must(t.signal(ctx, t.alice, t.w.Net, "carol is not here"))
	t.expect(ctx, payload, "alice", "bob", "bob's browser")
	_, err := t.w.Net.Once(ctx, t.carol.Account, xrpc.SignalCall(t.convo, stale))
	if name := xrpc.ErrorName(err); name != mlsapi.ErrNotMember {
		t.w.Broken("a removed member's signal was answered with %q, %v", name, err)
	}
	for name, e := range t.receivers {
		t.w.Note("%s: %d events, %d signals, %d moved cursors", name, e.events, len(e.typing), len(e.cursors))
	}
}
