package bench

import (
	"context"
	"fmt"
	"math"
	"slices"

	"mlsd/clientsim/bench/report"
	"mlsd/clientsim/testbed"
)

// Scenario is one benchmark.
type Scenario struct {
	Name, About string
	// modes is set if the scenario compares the ways to write messages, binaries if it can compare
	// servers.
	modes, binaries bool
	shares          bool          // everybody has a share of the processors
	usual           func(*Config) // sets the scenario's defaults
	run             func(context.Context, *bench) error
}

// Scenarios returns all scenarios.
func Scenarios() []Scenario { return scenarios() }

func scenarios() []Scenario {
	return []Scenario{
		{"send-hot", "all accounts send to one convo", true, true, false, sized(1, 64), sendBy},
		{"send-spread", "all accounts send to many convos", true, true, false, sized(1000, 2), sendBy},
		{"ceiling", "send-spread with a server that does everything but write messages", true, false, false, func(c *Config) {
			sized(1000, 2)(c)
			c.Variants = []string{ceiling}
		}, sendBy},
		{"mixed", "6 sends, 3 pages and a cursor in turn, while subscribers listen", true, false, false, listened(64), mixed},
		{"welcome-storm", "1,000 devices join at once during sends", false, true, false, sized(1000, 2), welcomeStorm},
		{"claim-storm", "1,000 KeyPackages are claimed at once during sends", false, true, false, sized(1000, 2), claimStorm},
		{"reconnect-storm", "5,000 streams drop and reconnect at once during sends", false, false, false, listened(5000), reconnectStorm},
		{"signals", "signals to 1,000 members who are connected: alone, and as many sends as possible with and without them", false, false, false, listened(mostMembers), measureSignals},
		{"half", "as fast as possible, and then at half that rate", false, false, false, sized(1000, 2), half},
		{"growth-members", "one convo of 2, 10, 100, 1,000 members", false, false, false, sized(1, 0), growMembers},
		{"growth-body", "ciphertexts of 256 bytes to 1 MiB", false, false, false, sized(100, 2), growBody},
		{"scale", "1, 2, 4 and 8 servers, each with a share of the processors, and a database with one", false, false, true, scaled, scale},
		{"scale-idle", "10,000 to 50,000 idle subscribers of a server with a share of the processors", false, false, true, scaledIdle, scaleIdle},
	}
}

// sized sets the default numbers of convos and of members.
func sized(convos, members int) func(*Config) {
	return func(c *Config) {
		if c.Convos == 0 {
			c.Convos = convos
		}
		if c.Members == 0 {
			c.Members = members
		}
	}
}

// listened also sets the default number of subscribers.
func listened(subscribers int) func(*Config) {
	return func(c *Config) {
		sized(1000, 2)(c)
		if c.Subscribers == 0 {
			c.Subscribers = subscribers
		}
	}
}

// pool returns how many ciphertexts each sender has in a convo. All together have at most 64 MiB.
func (c *Config) pool(convos, members, body int) int {
	const all, most = 2048, 64 << 20
	devices := convos * min(members, c.Senders, maxDevices)
	return max(1, min(all, most/body)/devices)
}

// sendBy compares the ways to write messages, or servers.
func sendBy(ctx context.Context, b *bench) error {
	c := b.c
	s, err := b.makeConvos(ctx, convoPlan{convos: c.Convos, members: c.Members, body: c.Body, pool: c.pool(c.Convos, c.Members, c.Body)})
	if err != nil {
		return err
	}
	var all []phase
	add := func(p phase) {
		name := p.variant
		for _, auth := range c.Auth {
			if p.auth, p.variant = auth, name; auth == AuthSession {
				p.variant += ", session"
			}
			all = append(all, p)
		}
	}
	if c.compares() {
		for i, binary := range c.Binaries {
			add(phase{variant: binary.Name, binary: i, convos: s, rate: c.Rate})
		}
		return b.turns(ctx, all...)
	}
	for _, v := range c.Variants {
		add(phase{variant: v, mode: modes[v], convos: s, rate: c.Rate})
	}
	return b.turns(ctx, all...)
}

// half finds the greatest rate, and then measures at half of it. The two do not take turns, because
// then each turn would have its own rate.
func half(ctx context.Context, b *bench) error {
	c := b.c
	s, err := b.makeConvos(ctx, convoPlan{convos: c.Convos, members: c.Members, body: c.Body, pool: c.pool(c.Convos, c.Members, c.Body)})
	if err != nil {
		return err
	}
	const most, at = "maximum", "half"
	var rates []float64
	for turn := range c.Turns {
		if _, err := b.run(ctx, phase{variant: most, turn: turn, convos: s}); err != nil {
			return err
		}
		rates = append(rates, b.rates[most])
	}
	slices.Sort(rates)
	rate := math.Round(rates[len(rates)/2] / 2)
	var tails []tail
	for turn := range c.Turns {
		p := phase{variant: at, turn: turn, convos: s, rate: rate}
		p.stalled = func(r *report.Run, requests []timed, stalls []stall) {
			tails = append(tails, b.tailOf(r, requests, stalls))
		}
		if _, err := b.run(ctx, p); err != nil {
			return err
		}
	}
	b.noteTails(tails)
	return nil
}

// growMembers compares convos of different sizes. The same two accounts send to each.
func growMembers(ctx context.Context, b *bench) error {
	c := b.c
	var all []phase
	for _, members := range []int{2, 10, 100, 1000} {
		s, err := b.makeConvos(ctx, convoPlan{convos: c.Convos, members: members, body: c.Body, pool: c.pool(c.Convos, 2, c.Body), senders: 2})
		if err != nil {
			return err
		}
		all = append(all, phase{variant: fmt.Sprintf("%d members", members), convos: s, rate: c.Rate, mode: testbed.SendsTogether})
	}
	return b.turns(ctx, all...)
}

// bytesInFlight is how many bytes of ciphertext are sent at once. A server refuses requests for
// which it has no memory.
const bytesInFlight = 16 << 20

// growBody compares ciphertexts of different sizes.
func growBody(ctx context.Context, b *bench) error {
	c := b.c
	var all []phase
	for _, body := range []int{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		s, err := b.makeConvos(ctx, convoPlan{convos: c.Convos, members: c.Members, body: body, pool: c.pool(c.Convos, c.Members, body)})
		if err != nil {
			return err
		}
		all = append(all, phase{
			variant: bytesText(body), convos: s, rate: c.Rate, mode: testbed.SendsTogether, inFlight: max(min(c.InFlight, bytesInFlight/body), 1),
		})
	}
	return b.turns(ctx, all...)
}

func bytesText(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
