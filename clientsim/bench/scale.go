package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	. "mlsd/clientsim/steps"
)

// scaled sets the defaults of the scenario scale.
func scaled(c *Config) {
	sized(1000, 2)(c)
	c.Servers = 1
	if len(c.Nodes) == 0 {
		c.Nodes = []int{1, 2, 4, 8}
	}
}

// checkScale refuses a configuration that the scenario scale cannot measure.
func (c *Config) checkScale() error {
	switch {
	case len(c.Standby) == 0:
		return errors.New("standby needs a value")
	case slices.Min(c.Nodes) < 1 || slices.Max(c.Nodes) > maxServers:
		return fmt.Errorf("nodes are %v, and have to be from 1 to %d", c.Nodes, maxServers)
	case c.Database != "" || c.compares() || c.Faults || len(c.Auth) != 1:
		return fmt.Errorf("%s has a PostgreSQL of its own, one server without a name, no faults, and one auth", c.Scenario)
	}
	return nil
}

func (c *Config) hasStandby() bool { return slices.Contains(c.Standby, true) }

// connections is the number of connections that a PostgreSQL allows. It is enough for sixteen
// nodes.
const connections = "600"

// arrangement is one combination of the values that scale varies.
type arrangement struct {
	nodes   int
	standby bool
}

func (a arrangement) String() string {
	name := "1 node"
	if a.nodes > 1 {
		name = fmt.Sprintf("%d nodes", a.nodes)
	}
	if a.standby {
		name += " and a standby"
	}
	return name
}

// The measurements of each arrangement: writing as fast as possible, reading pages as fast as
// possible, and writing at half the rate. At half the rate, no queue adds to the latencies.
const (
	scaleSend = "send, "
	scaleRead = "read, "
	scaleHalf = "half, "
)

// scale measures the arrangements by turns. It measures half of each rate when all rates are known.
func scale(ctx context.Context, b *bench) {
	b.makeConvos(ctx)
	b.fill(ctx)
	rates := map[arrangement][]float64{}
	b.arrangedTurns(ctx, func(a arrangement, p phase) {
		p.variant = scaleSend + a.String()
		b.run(ctx, p)
		rates[a] = append(rates[a], b.rates[p.variant])
		p.variant, p.pages = scaleRead+a.String(), true
		b.run(ctx, p)
	})
	b.arrangedTurns(ctx, func(a arrangement, p phase) {
		slices.Sort(rates[a])
		p.variant, p.rate = scaleHalf+a.String(), max(math.Round(rates[a][len(rates[a])/2]/2), 1)
		b.run(ctx, p)
	})
}

// pageOfFill is how many messages a convo has on average when scale begins. They fill one page.
const pageOfFill = 50

// fill writes until every convo has about a page of messages.
func (b *bench) fill(ctx context.Context) {
	for b.acknowledged.Load() < int64(pageOfFill*b.c.Convos) {
		before := b.acknowledged.Load()
		b.play(ctx, phase{variant: "fill", auth: b.c.Auth[0], span: b.c.For, inFlight: b.c.InFlight})
		if b.acknowledged.Load() == before {
			Fail("no message was acknowledged")
		}
	}
}

// arrangedTurns calls measure for each arrangement, by turns.
func (b *bench) arrangedTurns(ctx context.Context, measure func(arrangement, phase)) {
	for turn := range b.c.Turns {
		for _, standby := range b.c.Standby {
			for _, nodes := range b.c.Nodes {
				a := arrangement{nodes, standby}
				b.arrange(ctx, a)
				measure(a, phase{
					turn: turn, auth: b.c.Auth[0], inFlight: b.c.InFlight * nodes, warm: max(b.c.Warm, b.c.WarmStart),
				})
			}
		}
	}
}

// arrange restarts the servers in the given arrangement.
func (b *bench) arrange(ctx context.Context, a arrangement) {
	b.say("%s", a)
	b.closeWorkers()
	b.env.runServers(ctx, a.nodes, b.env.running, a.standby)
	for i, w := range b.workers {
		w.aim(b.env.addr(i))
	}
}
