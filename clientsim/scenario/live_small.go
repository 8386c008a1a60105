package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// streamTest is a small test of streams: phones with real MLS, and subscribers for them.
type streamTest struct {
	w           *testbed.World
	nodes       []*xrpc.Client
	history     *history.History
	subscribers *client.Subscribers
}

// withStreamTest runs play, waits until every subscriber has seen everything, and reports the
// violations.
func withStreamTest(ctx context.Context, w *testbed.World, play func(*streamTest)) {
	s := &streamTest{w: w, nodes: []*xrpc.Client{w.Net}, history: history.New(),
		subscribers: client.NewSubscribers(ctx, w.RNG.Uint64())}
	w.Model.History = s.history
	err := Attempt(func() { play(s) })
	if err == nil {
		err = w.AwaitAndJudge(ctx, s.subscribers, s.history, lastEventTimeout)
	}
	t := &s.subscribers.Counts
	w.Note("%d streams, %d connections: %d dropped, %d ended with 1012, %d with ConsumerTooSlow, %d otherwise",
		len(s.subscribers.All), t.Connected.Load(),
		t.Dropped.Load(), t.Restarted.Load(), t.Slow.Load(), t.Broke.Load())
	Check(errors.Join(err, s.subscribers.Stop()))
}

// lastEventTimeout is how long the last event of a small test may take.
const lastEventTimeout = time.Minute

// subscriber makes a subscriber for an account whose devices are these phones. The subscriber
// begins with the oldest event.
func (s *streamTest) subscriber(name string, account *xrpc.Account, phones ...*client.Phone) *client.Subscriber {
	var devices []string
	for _, p := range phones {
		devices = append(devices, p.DeviceID())
	}
	sub := s.subscribers.Add(name, account, s.nodes, devices...)
	sub.From = new(int64)
	return sub
}

// subscriberOf makes a subscriber for a phone that is its account's only device.
func (s *streamTest) subscriberOf(p *client.Phone) *client.Subscriber {
	return s.subscriber(p.Name, p.Account, p)
}

// joined makes phones join, each with its Welcome.
func (s *streamTest) joined(ctx context.Context, convo string, phones ...*client.Phone) {
	for _, p := range phones {
		Check(p.Join(ctx, convo))
		s.history.Welcomed(p.Account.DID, convo, p.DeviceID(), int64(p.Threads[convo].Entered))
	}
}

// create makes a convo of phones that have KeyPackages. They join at once.
func (s *streamTest) create(ctx context.Context, founder *client.Phone, others ...*client.Phone) string {
	convo := Must(founder.Create(ctx, testbed.DIDs(others)...))
	s.joined(ctx, convo, others...)
	return convo
}

// add adds phones. They join at once.
func (s *streamTest) add(ctx context.Context, by *client.Phone, convo string, others ...*client.Phone) {
	Check(by.Add(ctx, convo, testbed.DIDs(others)...))
	s.joined(ctx, convo, others...)
}

// everyoneWrites makes every phone write a message, and read the messages of the others.
func (s *streamTest) everyoneWrites(ctx context.Context, convo, about string, phones ...*client.Phone) {
	for _, p := range phones {
		Check(p.Send(ctx, convo, about+", says "+p.Name))
	}
	Check(s.w.SyncAll(ctx, convo, phones...))
}

// expectLowPackages expects an event for each device: its first claim makes its KeyPackages run
// low.
func (s *streamTest) expectLowPackages(phones ...*client.Phone) {
	for _, p := range phones {
		s.history.KeyPackagesChanged(p.Account.DID, p.DeviceID(), mlsapi.KeyPackagesEventChangeLow)
	}
}

// LiveBasic checks that messages, commits, roster changes, Welcomes and KeyPackages reach exactly
// the accounts that they are for. It uses WebSockets and server-sent events, and a subscriber that
// asks for one convo only.
func LiveBasic(ctx context.Context, w *testbed.World) {
	withStreamTest(ctx, w, func(s *streamTest) {
		phones := Must(w.Phones(ctx, 4))
		alice, bob, carol, outsider := phones[0], phones[1], phones[2], phones[3]
		sse := s.subscriber("bob's browser", bob.Account, bob)
		sse.ServerSent, sse.ConnectionLife = true, 200*time.Millisecond
		ticket, token := s.subscriberOf(alice), s.subscriberOf(bob)
		ticket.By, token.By = client.ByTicket, client.ByToken
		Check(s.subscribers.Listen(ticket, token, s.subscriberOf(carol), s.subscriberOf(outsider), sse))
		s.refused(ctx, alice)
		convo := s.create(ctx, alice, bob)
		s.expectLowPackages(bob)
		s.joinsAndLeaves(ctx, convo, alice, bob, carol)
		s.oneConvo(ctx, alice, bob)
	})
}

// refused checks that a ticket opens one connection only, and that a cursor beyond the stream is
// refused.
func (s *streamTest) refused(ctx context.Context, p *client.Phone) {
	ticket := Must(client.Ticket(ctx, s.w.Net, p.Account))
	if _, err := client.OpenStream(ctx, s.w.Net, "", url.Values{"ticket": {ticket.Ticket}}); err != nil {
		Fail("with a ticket: %w", err)
	}
	if _, err := client.OpenStream(ctx, s.w.Net, "", url.Values{"ticket": {ticket.Ticket}}); !isNamed(err,
		mlsapi.ErrInvalidTicket) {
		s.w.Broken("a ticket that was used was answered with %v", err)
	}
	if _, err := client.OpenStream(ctx, s.w.Net, "", url.Values{"ticket": {"nonsense"}}); !isNamed(err,
		mlsapi.ErrInvalidTicket) {
		s.w.Broken("a ticket that does not exist was answered with %v", err)
	}
	token := Must(p.Account.Token(s.w.Net.Audience, client.NSIDSubscribe))
	if _, err := client.OpenStream(ctx, s.w.Net, token, url.Values{"cursor": {"9007199254740991"}}); !isNamed(err,
		mlsapi.ErrFutureCursor) {
		s.w.Broken("a cursor ahead of the stream was answered with %v", err)
	}
	if _, err := client.OpenStream(ctx, s.w.Net, "", nil); !isNamed(err, "AuthMissing") {
		s.w.Broken("a stream without credentials was answered with %v", err)
	}
}

// isNamed reports whether an error answer or an error frame has this name.
func isNamed(err error, name string) bool {
	var streamErr *xrpc.StreamError
	return xrpc.ErrorName(err) == name || errors.As(err, &streamErr) && streamErr.Name == name
}

// joinsAndLeaves makes carol join and leave in every possible way.
func (s *streamTest) joinsAndLeaves(ctx context.Context, convo string, alice, bob, carol *client.Phone) {
	s.expectLowPackages(carol)
	s.everyoneWrites(ctx, convo, "two of us", alice, bob)
	s.add(ctx, alice, convo, carol)
	s.everyoneWrites(ctx, convo, "three of us", alice, bob, carol)
	Check(bob.Rotate(ctx, convo))
	Check(carol.Sync(ctx, convo))
	Check(carol.Leave(ctx, convo))
	s.everyoneWrites(ctx, convo, "carol has left", alice, bob)
	Check(bob.CommitRemovals(ctx, convo))
	s.add(ctx, bob, convo, carol)
	s.everyoneWrites(ctx, convo, "carol is back", carol, alice)
	Check(alice.Remove(ctx, convo, carol.Account.DID))
	s.everyoneWrites(ctx, convo, "carol was removed", alice, bob)
}

// oneConvo checks that a subscriber of one convo sees no other, and that a subscriber of all convos
// also sees its KeyPackages.
func (s *streamTest) oneConvo(ctx context.Context, alice, bob *client.Phone) {
	device := Must(s.w.SecondDevice(alice, "alice's tablet"))
	Check(device.PublishMany(ctx, 0, true))
	all := s.subscriber("alice with a tablet", alice.Account, alice, device)
	Check(bob.Publish(ctx, 1))
	for _, sub := range s.subscribers.All { // alice's subscribers also see her tablet
		if sub.Account == alice.Account {
			sub.Observer.Devices(alice.DeviceID(), device.DeviceID())
		}
	}
	Check(s.subscribers.Listen(all))
	second := s.create(ctx, alice, bob)
	one := s.subscriber("bob, of one convo", bob.Account, bob)
	one.Query, one.Observer.Only = url.Values{"convoIds": {second}}, []string{second}
	Check(s.subscribers.Listen(one))
	// The tablet has only its last-resort KeyPackage.
	Must(bob.ClaimAny(ctx, xrpc.ClaimCall(testbed.DIDs([]*client.Phone{device}), s.w.Suite, "", xrpc.NewKey())))
	s.history.KeyPackagesChanged(alice.Account.DID, device.DeviceID(), mlsapi.KeyPackagesEventChangeLastResort)
	s.expectLowPackages(alice)
	s.everyoneWrites(ctx, second, "second", bob, alice)
}

// LiveLateConvo checks that a subscriber that starts now sees every convo that it joins later, and
// nothing older.
func LiveLateConvo(ctx context.Context, w *testbed.World) {
	withStreamTest(ctx, w, func(s *streamTest) {
		phones := Must(w.Phones(ctx, 3))
		alice, bob, carol := phones[0], phones[1], phones[2]
		old := s.create(ctx, alice, bob, carol)
		s.everyoneWrites(ctx, old, "before any subscriber", alice, bob, carol)
		xrpc.Sleep(ctx, client.QuietTime) // so that its events are in the stream
		s.history.Forget(bob.Account.DID, carol.Account.DID)
		for _, p := range []*client.Phone{bob, carol} {
			sub := s.subscriberOf(p)
			sub.From = nil
			sub.Observer.StartAsMember(old, s.history.End(old))
			Check(s.subscribers.Listen(sub))
		}
		s.everyoneWrites(ctx, old, "now they listen", carol, bob)
		founded := s.create(ctx, alice, bob)
		s.everyoneWrites(ctx, founded, "a convo made late", alice, bob)
		s.add(ctx, bob, founded, carol)
		s.everyoneWrites(ctx, founded, "and joined later still", alice, bob, carol)
	})
}

// LiveRemoved checks that an open stream shows a member its removal and nothing after it. A stream
// that opens later shows the same.
func LiveRemoved(ctx context.Context, w *testbed.World) {
	withStreamTest(ctx, w, func(s *streamTest) {
		phones := Must(w.Phones(ctx, 4))
		alice, bob, carol, dora := phones[0], phones[1], phones[2], phones[3]
		for _, p := range phones {
			Check(s.subscribers.Listen(s.subscriberOf(p)))
		}
		convo := s.create(ctx, alice, bob, carol, dora)
		Check(alice.Remove(ctx, convo, bob.Account.DID))
		s.everyoneWrites(ctx, convo, "bob was removed", alice, dora)
		Check(carol.Sync(ctx, convo))
		s.everyoneWrites(ctx, convo, "carol reads on", alice, dora)
		Check(carol.Leave(ctx, convo))
		s.everyoneWrites(ctx, convo, "carol has left", alice, dora)
		again := []*client.Subscriber{s.subscriber("bob again", bob.Account, bob),
			s.subscriber("carol again", carol.Account, carol)}
		Check(s.subscribers.Listen(again...))
		Check(alice.CommitRemovals(ctx, convo))
		s.everyoneWrites(ctx, convo, "the two of us", alice, dora)
	})
}

// LiveReconnect drops streams on two servers all the time, and restarts one server in order.
func LiveReconnect(ctx context.Context, w *testbed.World) {
	w.WithSibling(ctx, func(sibling *testbed.Proc, other *xrpc.Client) {
		withStreamTest(ctx, w, func(s *streamTest) { liveReconnect(ctx, w, s, sibling, other) })
	})
}

func liveReconnect(ctx context.Context, w *testbed.World, s *streamTest, sibling *testbed.Proc, other *xrpc.Client) {
	s.nodes = append(s.nodes, other)
	phones := Must(w.Phones(ctx, 3))
	for i := range 6 {
		p := phones[i%3]
		sub := s.subscriber(fmt.Sprint(p.Name, " stream ", i), p.Account, p)
		sub.ConnectionLife = time.Duration(20*(i+1)) * time.Millisecond
		if i >= 3 {
			sub.ConnectionLife = 0
		}
		Check(s.subscribers.Listen(sub))
	}
	phones[1].Net = other
	convo := s.create(ctx, phones[0], phones[1:]...)
	for round := range 20 {
		s.everyoneWrites(ctx, convo, fmt.Sprintf("round %d", round), phones...)
		if round%4 == 3 {
			Check(phones[round%3].Rotate(ctx, convo))
			Check(w.SyncAll(ctx, convo, phones...))
		}
		if round == 10 {
			w.CloseIdle()
			Check(sibling.Stop())
			Check(sibling.Start(ctx, nil))
		}
	}
	phones[1].Net = w.Net
	if s.subscribers.Counts.Restarted.Load() == 0 {
		w.Broken("no stream ended with 1012 when its server was restarted")
	}
}

// LiveSlow stops reading while clients send more than a server keeps for a reader. When the reader
// goes on, it gets everything in order.
func LiveSlow(ctx context.Context, w *testbed.World) {
	withStreamTest(ctx, w, func(s *streamTest) {
		phones := Must(w.Phones(ctx, 2))
		alice, bob := phones[0], phones[1]
		slow := s.subscriber("bob, who pauses", bob.Account, bob)
		slow.Pause, slow.PauseAfter = time.Hour, 1 // pauses until everything is sent
		Check(s.subscribers.Listen(s.subscriberOf(alice), s.subscriberOf(bob), slow))
		convo := s.create(ctx, alice, bob)
		for i := range manyLong {
			text := fmt.Sprintf("a long message, %d: %s", i, strings.Repeat("x", longText))
			Check(alice.Send(ctx, convo, text))
		}
		s.everyoneWrites(ctx, convo, "that is all", alice, bob)
	})
}

// More than a server keeps for a reader.
const (
	manyLong = 48
	longText = 64 << 10
)
