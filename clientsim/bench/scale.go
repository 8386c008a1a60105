package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/clientsim/xrpc"
)

// This file measures several machines on one: servers and database have a share of the processors
// each, and the load has the rest.

// scaled sets the defaults of scale. Every account listens, so that events can be counted.
func scaled(c *Config) {
	sized(1000, 2)(c)
	c.Servers = 1
	if len(c.Nodes) == 0 {
		c.Nodes = []int{1, 2, 4, 8}
	}
}

// scaledIdle sets the defaults of scale-idle.
func scaledIdle(c *Config) {
	sized(100, 2)(c)
	c.Standby, c.Servers = []bool{false}, 1
	if len(c.Nodes) == 0 {
		c.Nodes = []int{3}
	}
	if c.Rate == 0 {
		c.Rate = 50
	}
}

// arrangements are the combinations that are measured.
func (c *Config) arrangements() (all []arrangement) {
	for _, standby := range c.Standby {
		for _, nodes := range c.Nodes {
			all = append(all, arrangement{nodes, standby})
		}
	}
	return all
}

// What scale measures of each arrangement: writing as fast as possible, pages as fast as possible,
// and writing at half the rate, whose latencies have no queue in them.
const (
	scaleSend = "send, "
	scaleRead = "read, "
	scaleHalf = "half, "
)

// scale measures each arrangement, by turns. Half of a rate is measured when all rates are known.
func scale(ctx context.Context, b *bench) error {
	c := b.c
	s, err := b.usualConvos(ctx)
	if err != nil {
		return err
	}
	if err := b.fill(ctx, s); err != nil {
		return err
	}
	b.note("each database has %.2f of a core, each server %.2f; at least %.2f are left for the load", c.Shares.Database, c.Shares.Node, c.Shares.Load)
	rates := map[arrangement][]float64{}
	err = b.arrangedTurns(ctx, s, func(a arrangement, p phase) error {
		p.variant = scaleSend + a.String()
		if _, err := b.run(ctx, p); err != nil {
			return err
		}
		rates[a] = append(rates[a], b.rates[p.variant])
		p.variant, p.pages = scaleRead+a.String(), true
		_, err := b.run(ctx, p)
		return err
	})
	if err != nil {
		return err
	}
	return b.arrangedTurns(ctx, s, func(a arrangement, p phase) error {
		slices.Sort(rates[a])
		p.variant, p.rate = scaleHalf+a.String(), max(math.Round(rates[a][len(rates[a])/2]/2), 1)
		_, err := b.run(ctx, p)
		return err
	})
}

// pageOfFill is how many messages a convo has at least before scale begins: a page of them.
const pageOfFill = 50

// fill writes until every convo has about a page of messages.
func (b *bench) fill(ctx context.Context, s *convoSet) error {
	for b.acknowledged.Load() < int64(pageOfFill*len(s.convos)) {
		before := b.acknowledged.Load()
		if _, err := b.play(ctx, phase{
			variant: "fill", auth: b.c.Auth[0], convos: s, span: b.c.For, inFlight: b.c.InFlight,
		}); err != nil {
			return err
		}
		if b.acknowledged.Load() == before {
			return errors.New("no message was acknowledged")
		}
	}
	return nil
}

// arrangedTurns calls measure for each arrangement, by turns, while every sender listens. Then each
// must have got every message of its convos once.
func (b *bench) arrangedTurns(ctx context.Context, s *convoSet, measure func(arrangement, phase) error) error {
	for turn := range b.c.Turns {
		for _, a := range b.c.arrangements() {
			if err := b.arrange(ctx, a); err != nil {
				return fmt.Errorf("%s: %w", a, err)
			}
			listening, before, err := b.listen(ctx)
			if err != nil {
				return err
			}
			err = measure(a, phase{
				turn: turn, convos: s, auth: b.c.Auth[0], inFlight: b.c.InFlight * a.nodes, warm: max(b.c.Warm, b.c.WarmStart),
				limited: true, streams: listening, subscribers: len(b.senders),
			})
			if err == nil {
				err = b.checkEvents(ctx, listening, before)
			}
			listening.end()
			if err != nil {
				return fmt.Errorf("%s: %w", a, err)
			}
		}
	}
	return nil
}

// handedOut is after how long a server has handed out all events: it reads the stream each second.
const handedOut = 2 * time.Second

// listen opens a stream for each sender, when all events so far have been published, and returns how
// many messages there were.
func (b *bench) listen(ctx context.Context) (s *streams, before written, err error) {
	if err := b.env.awaitEvents(ctx); err != nil {
		return nil, before, err
	}
	if s, err = b.subscribe(ctx, b.senders, len(b.senders)); err != nil {
		return nil, before, err
	}
	// A server that was slow to read the stream hands out events from before the streams were opened.
	select {
	case <-time.After(handedOut):
	case <-ctx.Done():
	}
	s.events.Store(0)
	return s, b.written(), context.Cause(ctx)
}

// awaitEvents waits until the outbox is empty.
func (s *environment) awaitEvents(ctx context.Context) error {
	db, err := pgx.Connect(ctx, s.database)
	if err != nil {
		return err
	}
	err = xrpc.Until(ctx, retryFor, func() (empty bool, err error) {
		err = db.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM outbox)`).Scan(&empty)
		return empty, err
	})
	return errors.Join(err, db.Close(ctx))
}

// written counts messages: acknowledged ones, and requests whose outcome stayed unknown.
type written struct{ acknowledged, unknown int64 }

// written counts all messages so far.
func (b *bench) written() (w written) {
	w.acknowledged = b.acknowledged.Load()
	for _, one := range b.workers {
		w.unknown += int64(len(one.outcome.unknown))
	}
	return w
}

// checkEvents waits until the senders got every message written since then, each member one event.
func (b *bench) checkEvents(ctx context.Context, s *streams, since written) error {
	now := b.written()
	least := (now.acknowledged - since.acknowledged) * int64(b.c.Members)
	most := least + (now.unknown-since.unknown)*int64(b.c.Members)
	err := xrpc.Until(ctx, retryFor, func() (bool, error) { return s.events.Load() >= least, nil })
	if got := s.events.Load(); err != nil || got > most || s.ended() > 0 {
		b.violated = append(b.violated, fmt.Sprintf("subscribers got %d events of %d to %d; servers ended %d of their connections", got, least, most, s.ended()))
	}
	return context.Cause(ctx)
}

// scaleIdle measures servers while more and more subscribers listen to nothing.
func scaleIdle(ctx context.Context, b *bench) error {
	c := b.c
	nodes := c.Nodes[0]
	s, err := b.usualConvos(ctx)
	if err != nil {
		return err
	}
	if err := b.arrange(ctx, arrangement{nodes: nodes}); err != nil {
		return err
	}
	b.note("the database has %.2f of a core, each server %.2f; %g messages a second to %d other subscribers", c.Shares.Database, c.Shares.Node, c.Rate, len(b.senders))
	listening, before, err := b.listen(ctx)
	if err != nil {
		return err
	}
	defer listening.end()
	there := &idlers{b: b}
	err = b.withIdle(ctx, s, listening, there)
	if err = errors.Join(err, there.end()); err != nil {
		return err
	}
	return b.checkEvents(ctx, listening, before)
}

// withIdle measures with each number of idle subscribers.
func (b *bench) withIdle(ctx context.Context, s *convoSet, listening *streams, there *idlers) error {
	for _, n := range b.c.Idle {
		if err := there.grow(ctx, n); err != nil {
			return err
		}
		memory, err := b.env.servers[0].Memory(ctx)
		if err != nil {
			return err
		}
		b.resident = memory.Resident
		for turn := range b.c.Turns {
			if _, err := b.run(ctx, phase{
				variant: fmt.Sprintf("%d idle", n), turn: turn, convos: s, auth: b.c.Auth[0], rate: b.c.Rate, limited: true, streams: listening,
				subscribers: n,
			}); err != nil {
				return err
			}
		}
	}
	return nil
}
