package bench

import (
	"context"
	"fmt"
	"math"
	"slices"

	"mlsd/clientsim"
)

// Scenario is something that can be measured.
type Scenario struct {
	Name, About string
	usual       func(*Config) // fills in what was not said
	run         func(context.Context, *bench) error
}

// Scenarios lists them.
func Scenarios() []Scenario { return scenarios() }

func scenarios() []Scenario {
	return []Scenario{
		{"send-hot", "everybody sends to one convo", sized(1, 64), sendBy},
		{"send-spread", "everybody sends, to many convos", sized(1000, 2), sendBy},
		{"ceiling", "send-spread with a server that does everything but write", func(c *Config) {
			sized(1000, 2)(c)
			c.Variants = []string{ceiling}
		}, sendBy},
		{"mixed", "6 sends, 3 pages and a cursor by turns, while subscribers listen", listened(64), mixed},
		{"welcome-storm", "1,000 devices join at once while sends go on", sized(1000, 2), welcomeStorm},
		{"claim-storm", "1,000 KeyPackages are claimed at once while sends go on", sized(1000, 2), claimStorm},
		{"reconnect-storm", "5,000 streams drop and come back at once while sends go on", listened(5000), reconnectStorm},
		{"half", "as fast as it goes, and then at half that rate", sized(1000, 2), half},
		{"growth-members", "one convo of 2, 10, 100, 1,000 members", sized(1, 0), growMembers},
		{"growth-body", "ciphertexts of 256 bytes to 1 MiB", sized(100, 2), growBody},
	}
}

// sized fills in how many convos there are, and of how many members.
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

// listened fills in how many listen besides.
func listened(subscribers int) func(*Config) {
	return func(c *Config) {
		sized(1000, 2)(c)
		if c.Subscribers == 0 {
			c.Subscribers = subscribers
		}
	}
}

// pool is how many ciphertexts each sender has in a convo: a few hundred in all at least, and not more than memory is worth.
func (c *Config) pool(convos, members, body int) int {
	const all, most = 2048, 64 << 20
	devices := convos * min(members, c.Senders, maxTroupe)
	return max(1, min(all, most/body)/devices)
}

// sendBy compares the ways to write messages.
func sendBy(ctx context.Context, b *bench) error {
	c := b.c
	s, err := b.set(ctx, plan{convos: c.Convos, members: c.Members, body: c.Body, pool: c.pool(c.Convos, c.Members, c.Body)})
	if err != nil {
		return err
	}
	var all []stretch
	for _, v := range c.Variants {
		all = append(all, stretch{variant: v, mode: modes[v], scene: s, rate: c.Rate})
	}
	return b.turns(ctx, all...)
}

// half finds the greatest rate, and then measures at half of it: by turns would be fairer, but then each turn would have a rate of its own.
func half(ctx context.Context, b *bench) error {
	c := b.c
	s, err := b.set(ctx, plan{convos: c.Convos, members: c.Members, body: c.Body, pool: c.pool(c.Convos, c.Members, c.Body)})
	if err != nil {
		return err
	}
	const most, at = "maximum", "half"
	var rates []float64
	for turn := range c.Turns {
		if _, err := b.run(ctx, stretch{variant: most, turn: turn, scene: s}); err != nil {
			return err
		}
		rates = append(rates, b.rates[most])
	}
	slices.Sort(rates)
	rate := math.Round(rates[len(rates)/2] / 2)
	for turn := range c.Turns {
		if _, err := b.run(ctx, stretch{variant: at, turn: turn, scene: s, rate: rate}); err != nil {
			return err
		}
	}
	return nil
}

// growMembers compares convos of different sizes, to each of which the same two send.
func growMembers(ctx context.Context, b *bench) error {
	c := b.c
	var all []stretch
	for _, members := range []int{2, 10, 100, 1000} {
		s, err := b.set(ctx, plan{convos: c.Convos, members: members, body: c.Body, pool: c.pool(c.Convos, 2, c.Body), cast: 2})
		if err != nil {
			return err
		}
		all = append(all, stretch{variant: fmt.Sprintf("%d members", members), scene: s, rate: c.Rate, mode: clientsim.SendsTogether})
	}
	return b.turns(ctx, all...)
}

// bytesInFlight bounds the ciphertexts that are under way at once: a server refuses requests for which it has no memory.
const bytesInFlight = 16 << 20

// growBody compares ciphertexts of different sizes.
func growBody(ctx context.Context, b *bench) error {
	c := b.c
	var all []stretch
	for _, body := range []int{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		s, err := b.set(ctx, plan{convos: c.Convos, members: c.Members, body: body, pool: c.pool(c.Convos, c.Members, body)})
		if err != nil {
			return err
		}
		all = append(all, stretch{
			variant: bytesText(body), scene: s, rate: c.Rate, mode: clientsim.SendsTogether, flight: max(min(c.InFlight, bytesInFlight/body), 1),
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
