package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"mlsd/clientsim/load"
	"mlsd/clientsim/testbed"
)

// Scenario is one benchmark.
type Scenario struct {
	Name, About string
	sessions    bool // senders can have sessions
	binaries    bool // servers of several binaries can take turns
	everyone    bool // every sender is a member, and subscribes
	usual       Load // the scenario's defaults
	run         func(context.Context, *bench)
}

// Scenarios returns all scenarios.
func Scenarios() []Scenario {
	spread := Load{Convos: 1000, Members: 2}
	storm, listened := spread, spread
	storm.Rate, listened.Rate, listened.Subscribers = stormRate, stormRate, 5000
	return []Scenario{
		{"send-hot", "all accounts send to one convo", true, true, false, Load{Convos: 1, Members: 64}, send},
		{"send-spread", "all accounts send to many convos", true, true, false, spread, send},
		{"welcome-storm", "1,000 devices join at once during sends", false, true, false, storm, welcomeStorm},
		{"claim-storm", "1,000 KeyPackages are claimed at once during sends", false, true, false, storm, claimStorm},
		{"reconnect-storm", "5,000 streams drop and reconnect at once during sends", false, false, false,
			listened, reconnectStorm},
		{"fanout", "events to 1,000 subscribers, WebSockets and server-sent events, beside bare writes", false, true, true,
			Load{Convos: 1, Subscribers: 1000, Rate: fanoutRate}, fanout},
		{"growth", "each operation with few and many log entries and members", true, true, false,
			Load{Convos: 31, Members: 10}, growth},
		{"scale", "1, 2, 4 and 8 servers, with and without a standby that they read from", true, true, false, spread,
			scale},
	}
}

// The default numbers of messages a second.
const (
	stormRate  = 500
	fanoutRate = 10
)

// fill sets the numbers that are not given. A convo has all senders, if neither c nor usual says
// otherwise.
func (c *Config) fill(usual Load) {
	c.Convos, c.Members = cmp.Or(c.Convos, usual.Convos), cmp.Or(c.Members, usual.Members, c.Senders)
	c.Rate, c.Subscribers = cmp.Or(c.Rate, usual.Rate), cmp.Or(c.Subscribers, usual.Subscribers)
	if c.Messages > 0 {
		c.Turns = 1
	}
}

// servers returns the binaries that take turns. A single one needs no name.
func (c *Config) servers() []testbed.Binary {
	if len(c.Binaries) == 0 {
		return []testbed.Binary{{}}
	}
	return c.Binaries
}

// join returns the name of a variant at a server.
func join(variant string, server testbed.Binary) string {
	if server.Name == "" {
		return variant
	}
	return variant + "/mlsd=" + server.Name
}

// send compares servers, or the ways in which senders authenticate.
func send(ctx context.Context, b *bench) {
	var all []phase
	for i, server := range b.c.servers() {
		for _, auth := range b.c.Auth {
			all = append(all, phase{
				variant: join("auth="+auth, server), at: place{i, b.c.Servers, false}, auth: auth, rate: b.c.Rate,
				inFlight: b.c.InFlight, messages: b.c.Messages,
			})
		}
	}
	b.turns(ctx, all...)
}

// pageOfFill is how many messages a convo has on average when scale begins. They fill one page.
const pageOfFill = 50

// scale measures numbers of servers, by turns: writing as fast as possible, reading pages as fast
// as possible, and then writing at half the rate of the writing. At half the rate, no queue adds to
// the latencies.
func scale(ctx context.Context, b *bench) {
	fill := phase{at: b.env.at, auth: b.c.Auth[0], inFlight: b.c.InFlight, messages: int64(pageOfFill * b.c.Convos)}
	b.play(ctx, fill)
	var fast, half []phase
	for _, standby := range b.c.Standby {
		for _, nodes := range b.c.Nodes {
			for i, server := range b.c.servers() {
				for _, auth := range b.c.Auth {
					name := join(fmt.Sprintf("auth=%s/nodes=%d/standby=%t", auth, nodes, standby), server)
					p := phase{at: place{i, nodes, standby}, auth: auth, inFlight: b.c.InFlight * nodes}
					write, read, at := p, p, p
					write.variant, read.variant, at.variant = "do=send/"+name, "do=read/"+name, "do=half/"+name
					read.ask = &firstPage
					fast, half = append(fast, write, read), append(half, at)
				}
			}
		}
	}
	b.turns(ctx, fast...)
	for i := range half {
		var rates []float64
		for _, run := range b.report.Turns {
			if run.Variant == fast[2*i].variant {
				rates = append(rates, float64(run.Operations[opSend].Done)/run.Took.Seconds())
			}
		}
		half[i].rate = max(math.Round(load.Median(rates)/2), 1)
	}
	b.turns(ctx, half...)
}
