package bench

import "context"

// Scenario is one benchmark.
type Scenario struct {
	Name, About string
	sessions    bool          // senders can have sessions
	binaries    bool          // the scenario can compare servers
	scales      bool          // the scenario varies the number of servers
	usual       func(*Config) // sets the scenario's defaults
	run         func(context.Context, *bench)
}

// Scenarios returns all scenarios.
func Scenarios() []Scenario {
	return []Scenario{
		{"send-hot", "all accounts send to one convo", true, true, false, sized(1, 64), sendBy},
		{"send-spread", "all accounts send to many convos", true, true, false, sized(1000, 2), sendBy},
		{"welcome-storm", "1,000 devices join at once during sends", false, true, false, sized(1000, 2), welcomeStorm},
		{"claim-storm", "1,000 KeyPackages are claimed at once during sends", false, true, false, sized(1000, 2), claimStorm},
		{"reconnect-storm", "5,000 streams drop and reconnect at once during sends", false, false, false, listened(5000),
			reconnectStorm},
		{"fanout", "events to 1,000 subscribers, WebSockets and server-sent events, beside bare writes", false, true,
			false, fannedOut, fanout},
		{"scale", "1, 2, 4 and 8 servers, with and without a standby that they read from", true, false, true, scaled, scale},
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

// listened is sized, and also sets the default number of subscribers.
func listened(subscribers int) func(*Config) {
	return func(c *Config) {
		sized(1000, 2)(c)
		if c.Subscribers == 0 {
			c.Subscribers = subscribers
		}
	}
}

// fannedOut sets the defaults for an audience: every account is a member of each convo.
func fannedOut(c *Config) {
	sized(1, c.Senders)(c)
	if c.Subscribers == 0 {
		c.Subscribers = 1000
	}
}

// pool returns how many ciphertexts each sender has in a convo. All ciphertexts together have at
// most 64 MiB.
func (c *Config) pool() int {
	const all, most = 2048, 64 << 20
	devices := c.Convos * min(c.Members, c.Senders, maxSending)
	return max(1, min(all, most/c.Body)/devices)
}

// sendBy compares servers, or the ways in which senders authenticate.
func sendBy(ctx context.Context, b *bench) {
	b.makeConvos(ctx)
	var all []phase
	for i, server := range b.c.servers() {
		for _, auth := range b.c.Auth {
			all = append(all, phase{
				variant: join(auth, server), against: join(auth, b.c.servers()[0]), binary: i, auth: auth, rate: b.c.Rate,
			})
		}
	}
	b.turns(ctx, all...)
}

// servers returns the names of the servers that take turns. A single server needs no name.
func (c *Config) servers() []string {
	if !c.compares() {
		return []string{""}
	}
	var names []string
	for _, binary := range c.Binaries {
		names = append(names, binary.Name)
	}
	return names
}

// join returns the name of a variant at a server.
func join(variant, server string) string {
	if server == "" {
		return variant
	}
	return variant + ", " + server
}
