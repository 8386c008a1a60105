package clientsim

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"mlsd/api/mlsapi"
)

// salon is a small story on streams: phones with real MLS, and subscribers for them.
type salon struct {
	w     *World
	nodes []*Client
	c     *Chronicle
	a     *audience
}

// withSalon plays one, waits until everybody has been told everything, and judges.
func (w *World) withSalon(ctx context.Context, story func(*salon) error) error {
	s := &salon{w: w, nodes: []*Client{w.net}, c: NewChronicle(), a: newAudience(ctx, w.rng.Uint64())}
	w.model.chronicle = s.c
	err := story(s)
	if err == nil {
		err = w.caughtUp(ctx, s.a, s.c, storyPatience)
	}
	t := &s.a.tally
	w.Note("%d streams, %d connections: %d dropped, %d ended with 1012, %d with ConsumerTooSlow, %d otherwise", len(s.a.all), t.Connected.Load(),
		t.Dropped.Load(), t.Restarted.Load(), t.Slow.Load(), t.Broke.Load())
	return errors.Join(err, s.a.stop())
}

// storyPatience bounds how long the last event of a small story may take.
const storyPatience = 20 * time.Second

// subscriber makes one for an account, whose devices are these phones. It begins with the oldest event.
func (s *salon) subscriber(name string, account *Account, phones ...*Phone) *Subscriber {
	var devices []string
	for _, p := range phones {
		devices = append(devices, p.deviceID())
	}
	sub := s.a.add(name, account, s.nodes, devices...)
	sub.From = new(int64)
	return sub
}

// of makes a subscriber for a phone that has its account for itself.
func (s *salon) of(p *Phone) *Subscriber { return s.subscriber(p.Name, p.Account, p) }

// joined has phones join, each of which has a Welcome.
func (s *salon) joined(ctx context.Context, convo string, phones ...*Phone) error {
	for _, p := range phones {
		if err := p.Join(ctx, convo); err != nil {
			return err
		}
		s.c.Welcomed(p.Account.DID, convo, p.deviceID(), int64(p.threads[convo].Entered))
	}
	return nil
}

// create makes a convo of phones that have KeyPackages, and join at once.
func (s *salon) create(ctx context.Context, founder *Phone, others ...*Phone) (string, error) {
	convo, err := founder.Create(ctx, dids(others)...)
	if err != nil {
		return "", err
	}
	return convo, s.joined(ctx, convo, others...)
}

// add adds phones, which join at once.
func (s *salon) add(ctx context.Context, by *Phone, convo string, others ...*Phone) error {
	if err := by.Add(ctx, convo, dids(others)...); err != nil {
		return err
	}
	return s.joined(ctx, convo, others...)
}

// chat has everybody say something, and read what the others said.
func (s *salon) chat(ctx context.Context, convo, about string, phones ...*Phone) error {
	for _, p := range phones {
		if err := p.Send(ctx, convo, about+", says "+p.Name); err != nil {
			return err
		}
	}
	return s.w.SyncAll(ctx, convo, phones...)
}

// low: the first claim of a device's few KeyPackages says that there are too few.
func (s *salon) low(phones ...*Phone) {
	for _, p := range phones {
		s.c.Signalled(p.Account.DID, p.deviceID(), mlsapi.KeyPackagesEventChangeLow)
	}
}

// LiveBasic: messages, commits, people who come and go, Welcomes and KeyPackages are told to whom they concern, over WebSockets and
// as server-sent events, and to nobody else; also to one who asks for one convo only.
func LiveBasic(ctx context.Context, w *World) error {
	return w.withSalon(ctx, func(s *salon) error {
		phones, err := w.Phones(ctx, 4)
		if err != nil {
			return err
		}
		alice, bob, carol, stranger := phones[0], phones[1], phones[2], phones[3]
		sse := s.subscriber("bob's browser", bob.Account, bob)
		sse.ServerSent, sse.Life = true, 200*time.Millisecond
		ticket, token := s.of(alice), s.of(bob)
		ticket.By, token.By = byTicket, byToken
		if err := s.a.listen(ticket, token, s.of(carol), s.of(stranger), sse); err != nil {
			return err
		}
		if err := s.refused(ctx, alice); err != nil {
			return err
		}
		convo, err := s.create(ctx, alice, bob)
		if err != nil {
			return err
		}
		s.low(bob)
		if err := s.comings(ctx, convo, alice, bob, carol); err != nil {
			return err
		}
		return s.oneConvo(ctx, alice, bob)
	})
}

// refused: a ticket opens one connection, and there is nothing ahead of the stream.
func (s *salon) refused(ctx context.Context, p *Phone) error {
	ticket, err := s.w.net.ticket(ctx, p.Account)
	if err != nil {
		return err
	}
	if err := s.w.net.opens(ctx, "", url.Values{"ticket": {ticket.Ticket}}); err != nil {
		return fmt.Errorf("with a ticket: %w", err)
	}
	if err := s.w.net.opens(ctx, "", url.Values{"ticket": {ticket.Ticket}}); !isNamed(err, mlsapi.ErrInvalidTicket) {
		s.w.Broken("a ticket that was used was answered with %v", err)
	}
	if err := s.w.net.opens(ctx, "", url.Values{"ticket": {"nonsense"}}); !isNamed(err, mlsapi.ErrInvalidTicket) {
		s.w.Broken("a ticket that never was was answered with %v", err)
	}
	token, err := p.Account.Token(s.w.net.audience, nsidSubscribe)
	if err != nil {
		return err
	}
	if err := s.w.net.opens(ctx, token, url.Values{"cursor": {"9007199254740991"}}); !isNamed(err, mlsapi.ErrFutureCursor) {
		s.w.Broken("a cursor ahead of the stream was answered with %v", err)
	}
	if err := s.w.net.opens(ctx, "", nil); !isNamed(err, "AuthMissing") {
		s.w.Broken("who does not say who it is was answered with %v", err)
	}
	return nil
}

// isNamed reports whether an answer, or an error frame, has this name.
func isNamed(err error, name string) bool {
	var told *streamError
	return ErrorName(err) == name || errors.As(err, &told) && told.name == name
}

// comings has carol come and go in all the ways there are.
func (s *salon) comings(ctx context.Context, convo string, alice, bob, carol *Phone) error {
	s.low(carol)
	for _, step := range []func() error{
		func() error { return s.chat(ctx, convo, "two of us", alice, bob) },
		func() error { return s.add(ctx, alice, convo, carol) },
		func() error { return s.chat(ctx, convo, "three of us", alice, bob, carol) },
		func() error { return bob.Rotate(ctx, convo) },
		func() error { return carol.Sync(ctx, convo) },
		func() error { return carol.Leave(ctx, convo) },
		func() error { return s.chat(ctx, convo, "carol has left", alice, bob) },
		func() error { return bob.Tidy(ctx, convo) },
		func() error { return s.add(ctx, bob, convo, carol) },
		func() error { return s.chat(ctx, convo, "carol is back", carol, alice) },
		func() error { return alice.Remove(ctx, convo, carol.Account.DID) },
		func() error { return s.chat(ctx, convo, "carol was removed", alice, bob) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// oneConvo: who asks for one convo is told of no other, and who asks for all is told of its KeyPackages as well.
func (s *salon) oneConvo(ctx context.Context, alice, bob *Phone) error {
	device, err := s.w.SecondDevice(alice, "alice's tablet")
	if err != nil {
		return err
	}
	if err := device.Stock(ctx, 0, true); err != nil {
		return err
	}
	all := s.subscriber("alice with a tablet", alice.Account, alice, device)
	if err := bob.Publish(ctx, 1); err != nil {
		return err
	}
	for _, sub := range s.a.all { // whoever listens for alice hears of the tablet too
		if sub.Account == alice.Account {
			sub.Vigil.Devices(alice.deviceID(), device.deviceID())
		}
	}
	if err := s.a.listen(all); err != nil {
		return err
	}
	aside, err := s.create(ctx, alice, bob)
	if err != nil {
		return err
	}
	one := s.subscriber("bob, of one convo", bob.Account, bob)
	one.Query, one.Vigil.only = url.Values{"convoIds": {aside}}, []string{aside}
	if err := s.a.listen(one); err != nil {
		return err
	}
	// The last-resort one of the tablet is all that it has.
	if _, err := bob.claimAny(ctx, claimCall(dids([]*Phone{device}), s.w.suite, "", newKey())); err != nil {
		return err
	}
	s.c.Signalled(alice.Account.DID, device.deviceID(), mlsapi.KeyPackagesEventChangeLastResort)
	s.low(alice)
	return s.chat(ctx, aside, "aside", bob, alice)
}

// LiveLateConvo: who listens from now on hears of every convo that it comes into afterwards, and of nothing from before.
func LiveLateConvo(ctx context.Context, w *World) error {
	return w.withSalon(ctx, func(s *salon) error {
		phones, err := w.Phones(ctx, 3)
		if err != nil {
			return err
		}
		alice, bob, carol := phones[0], phones[1], phones[2]
		old, err := s.create(ctx, alice, bob, carol)
		if err != nil {
			return err
		}
		if err := s.chat(ctx, old, "before anybody listens", alice, bob, carol); err != nil {
			return err
		}
		sleep(ctx, lull) // so that it is in the stream
		s.c.Forget(bob.Account.DID, carol.Account.DID)
		for _, p := range []*Phone{bob, carol} {
			sub := s.of(p)
			sub.From = nil
			sub.Vigil.Assume(old, s.c.End(old))
			if err := s.a.listen(sub); err != nil {
				return err
			}
		}
		if err := s.chat(ctx, old, "now they listen", carol, bob); err != nil {
			return err
		}
		founded, err := s.create(ctx, alice, bob)
		if err != nil {
			return err
		}
		if err := s.chat(ctx, founded, "a convo made late", alice, bob); err != nil {
			return err
		}
		if err := s.add(ctx, bob, founded, carol); err != nil {
			return err
		}
		return s.chat(ctx, founded, "and joined later still", alice, bob, carol)
	})
}

// LiveRemoved: an open stream tells a member of its removal and of nothing after it; also one that is opened later.
func LiveRemoved(ctx context.Context, w *World) error {
	return w.withSalon(ctx, func(s *salon) error {
		phones, err := w.Phones(ctx, 4)
		if err != nil {
			return err
		}
		alice, bob, carol, dora := phones[0], phones[1], phones[2], phones[3]
		for _, p := range phones {
			if err := s.a.listen(s.of(p)); err != nil {
				return err
			}
		}
		convo, err := s.create(ctx, alice, bob, carol, dora)
		if err != nil {
			return err
		}
		for i, step := range []func() error{
			func() error { return alice.Remove(ctx, convo, bob.Account.DID) },
			func() error { return carol.Sync(ctx, convo) },
			func() error { return carol.Leave(ctx, convo) },
		} {
			if err := errors.Join(step(), s.chat(ctx, convo, fmt.Sprintf("after step %d", i), alice, dora)); err != nil {
				return err
			}
		}
		again := []*Subscriber{s.subscriber("bob again", bob.Account, bob), s.subscriber("carol again", carol.Account, carol)}
		if err := s.a.listen(again...); err != nil {
			return err
		}
		if err := alice.Tidy(ctx, convo); err != nil {
			return err
		}
		return s.chat(ctx, convo, "the two of us", alice, dora)
	})
}

// LiveReconnect: streams on two servers are dropped all the time, and one of the servers is restarted in order.
func LiveReconnect(ctx context.Context, w *World) error {
	sibling, err := w.Server.Sibling()
	if err != nil {
		return err
	}
	if err := sibling.Start(ctx, nil); err != nil {
		return err
	}
	err = w.withSalon(ctx, func(s *salon) error {
		other := NewClient(sibling.URL(), w.net.audience, w.Faults, w.Stats)
		s.nodes = append(s.nodes, other)
		phones, err := w.Phones(ctx, 3)
		if err != nil {
			return err
		}
		for i := range 6 {
			p := phones[i%3]
			sub := s.subscriber(fmt.Sprint(p.Name, " stream ", i), p.Account, p)
			sub.Life = time.Duration(20*(i+1)) * time.Millisecond
			if i >= 3 {
				sub.Life = 0
			}
			if err := s.a.listen(sub); err != nil {
				return err
			}
		}
		phones[1].net = other
		convo, err := s.create(ctx, phones[0], phones[1:]...)
		if err != nil {
			return err
		}
		for round := range 20 {
			if err := s.chat(ctx, convo, fmt.Sprintf("round %d", round), phones...); err != nil {
				return err
			}
			if round%4 == 3 {
				if err := errors.Join(phones[round%3].Rotate(ctx, convo), w.SyncAll(ctx, convo, phones...)); err != nil {
					return err
				}
			}
			if round == 10 {
				w.closeIdle()
				if err := errors.Join(sibling.Stop(), sibling.Start(ctx, nil)); err != nil {
					return err
				}
			}
		}
		phones[1].net = w.net
		if s.a.tally.Restarted.Load() == 0 {
			w.Broken("no stream ended with 1012 when its server was restarted")
		}
		return nil
	})
	w.closeIdle()
	return errors.Join(err, sibling.Stop())
}

// LiveSlow: one who stops reading while more is sent than anybody keeps for him is told all of it, in order, when he reads on.
func LiveSlow(ctx context.Context, w *World) error {
	return w.withSalon(ctx, func(s *salon) error {
		phones, err := w.Phones(ctx, 2)
		if err != nil {
			return err
		}
		alice, bob := phones[0], phones[1]
		slow := s.subscriber("bob, who dozes", bob.Account, bob)
		slow.Doze, slow.DozeAfter = time.Hour, 1 // until all has been sent
		if err := s.a.listen(s.of(alice), s.of(bob), slow); err != nil {
			return err
		}
		convo, err := s.create(ctx, alice, bob)
		if err != nil {
			return err
		}
		for i := range manyLong {
			text := fmt.Sprintf("a long message, %d: %s", i, strings.Repeat("x", longText))
			if err := alice.Send(ctx, convo, text); err != nil {
				return err
			}
		}
		return s.chat(ctx, convo, "that is all", alice, bob)
	})
}

// More than a server keeps for a reader.
const (
	manyLong = 48
	longText = 64 << 10
)
