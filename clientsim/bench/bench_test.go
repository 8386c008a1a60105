package bench

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/testbed/testbedtest"
	"mlsd/internal/pgtest"
)

func TestMain(m *testing.M) {
	os.Exit(testbedtest.Run(m))
}

// small returns a small configuration, with a database of the test's own.
func small(t *testing.T, scenario string) Config {
	c := smallest(t, scenario)
	c.Database = pgtest.URL(t)
	return c
}

// smallest returns a small configuration that starts a PostgreSQL of its own.
func smallest(t *testing.T, scenario string) Config {
	c := Default()
	c.Binaries = []testbed.Binary{{Path: testbedtest.Binary(t)}}
	c.Scenario, c.Seed, c.InFlight, c.Turns, c.Senders, c.Convos, c.Members = scenario, 1, 8, 1, 4, 4, 3
	c.For, c.Warm = 500*time.Millisecond, 50*time.Millisecond
	c.Joins, c.Subscribers = 10, 8
	return c
}

// A server is killed under load, answers are dropped, and requests are sent twice at once. No
// message is lost or doubled.
func TestFaults(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	c := small(t, "send-hot")
	c.Convos, c.Members, c.Servers = 1, 8, 2
	c.Faults, c.For, c.KillEvery = true, 1500*time.Millisecond, 700*time.Millisecond
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	v := r.Verdict
	if !v.Kept() || v.Sent == 0 || v.Stored != v.Sent+v.Unknown {
		t.Errorf("%+v", v)
	}
	if v.Kills == 0 || v.Dropped == 0 || v.Duplicate == 0 || v.Retried < v.Dropped {
		t.Errorf("too little happened: %+v", v)
	}
}

// Every subscriber gets every event, over WebSockets and as server-sent events. The bare writes are
// measured in the same run.
func TestFanout(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	c := small(t, "fanout")
	c.Convos, c.Members, c.Rate, c.Subscribers = 1, c.Senders, 20, 24
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Verdict.Kept() || len(r.Turns) != 3 {
		t.Fatalf("%d turns, %+v", len(r.Turns), r.Verdict)
	}
	for _, run := range r.Turns {
		events := run.Operations[opEvent]
		if events == nil || events.Done == 0 || run.Spent.Server == 0 || run.Main != opEvent {
			t.Fatalf("%s: %+v, %+v", run.Variant, events, run.Spent)
		}
		if last := run.Operations[opLast]; run.Variant != bareWrites && (last == nil || last.Done == 0) {
			t.Errorf("%s: no event has reached all subscribers", run.Variant)
		}
	}
	// Every subscriber is a member, even if there are more subscribers than senders of a convo.
	c.Senders, c.Members, c.Subscribers, c.Rate = 65, 65, 130, 5
	if r, err = Run(t.Context(), c); err != nil || !r.Verdict.Kept() {
		t.Errorf("%d subscribers: %v", c.Subscribers, err)
	}
}

// Servers take turns as variants, at the same address and on the same database.
func TestServersTakeTurns(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	for scenario, want := range map[string]struct {
		turns    int
		variants string
	}{
		"send-hot":      {2, "auth=service/mlsd=old auth=service/mlsd=new auth=service/mlsd=old auth=service/mlsd=new"},
		"welcome-storm": {1, "load=calm/mlsd=old load=storm/mlsd=old load=calm/mlsd=new load=storm/mlsd=new"},
	} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			c := small(t, scenario)
			c.Rate, c.Turns, c.Binaries = 100, want.turns,
				[]testbed.Binary{{Name: "old", Path: c.Binaries[0].Path}, {Name: "new", Path: c.Binaries[0].Path}}
			r, err := Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Verdict.Kept() || r.Verdict.Sent == 0 || r.Verdict.Stored != r.Verdict.Sent || r.Verdict.Kills > 0 {
				t.Errorf("%+v", r.Verdict)
			}
			var variants []string
			for _, run := range r.Turns {
				variants = append(variants, run.Variant)
				for name, op := range run.Operations {
					if op.Done == 0 || len(op.Failed) > 0 {
						t.Errorf("%s, turn %d: %s: %+v", run.Variant, run.Index, name, op)
					}
				}
			}
			if got := strings.Join(variants, " "); got != want.variants {
				t.Errorf("variants %q, want %q", got, want.variants)
			}
		})
	}
}

// The benchmark ends soon after enough messages are acknowledged, even during the warm-up.
func TestEnough(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots a server")
	}
	c := small(t, "send-hot")
	c.Messages, c.For = 5, time.Minute
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if v := r.Verdict; !v.Kept() || v.Sent < c.Messages || v.Stored != v.Sent {
		t.Errorf("%+v", v)
	}
}

// Every scenario measures its operations, on a small scale, and breaks no promise.
func TestScenarios(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	for name, want := range map[string]struct {
		variants   string
		operations []string // operations in the last run
	}{
		"send-spread":     {"auth=service", []string{"sendMessage"}},
		"welcome-storm":   {"load=calm load=storm", []string{"sendMessage", "getWelcome", "confirmWelcome"}},
		"claim-storm":     {"load=calm load=storm", []string{"sendMessage", "getKeyPackages"}},
		"reconnect-storm": {"load=calm load=storm", []string{"sendMessage", "subscribeConvoEvents"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := small(t, name)
			c.Rate = 200
			r, err := Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Verdict.Kept() || r.Verdict.Sent == 0 || r.Verdict.Stored != r.Verdict.Sent {
				t.Errorf("%+v", r.Verdict)
			}
			var variants []string
			for _, run := range r.Turns {
				variants = append(variants, run.Variant)
				if run.Spent.Load == 0 || run.Took == 0 || run.Servers != 1 {
					t.Errorf("%s: %+v", run.Variant, run)
				}
			}
			if got := strings.Join(variants, " "); got != want.variants {
				t.Errorf("variants %q, want %q", got, want.variants)
			}
			last := r.Turns[len(r.Turns)-1]
			for _, op := range want.operations {
				if o := last.Operations[op]; o == nil || o.Done == 0 || len(o.Failed) > 0 || o.Latency.TotalCount() != o.Done {
					t.Errorf("%s: %+v", op, o)
				}
			}
			if !strings.Contains(r.Machine.Database, "fsync") || r.Machine.Cores == 0 || r.Machine.Server == "" {
				t.Errorf("%+v", r.Machine)
			}
		})
	}
}

// Each number of servers is measured in three ways.
func TestScale(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	c := smallest(t, "scale")
	c.Nodes, c.Members, c.Auth = []int{1, 2}, 2, []string{AuthSession}
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Verdict.Kept() || r.Verdict.Sent == 0 || r.Verdict.Stored != r.Verdict.Sent {
		t.Errorf("%+v", r.Verdict)
	}
	if !strings.Contains(r.Machine.Database, "fsync on") {
		t.Errorf("the benchmark's own PostgreSQL is %s", r.Machine.Database)
	}
	var variants []string
	for _, run := range r.Turns {
		variants = append(variants, run.Variant)
		if strings.Contains(run.Variant, "nodes=2") != (run.Servers == 2) {
			t.Errorf("%s: %d servers", run.Variant, run.Servers)
		}
		for name, op := range run.Operations {
			if op.Done == 0 || len(op.Failed) > 0 || name == opPage != strings.HasPrefix(run.Variant, "do=read/") {
				t.Errorf("%s: %s: %+v", run.Variant, name, op)
			}
		}
	}
	one, two := "/auth=session/nodes=1/standby=false", "/auth=session/nodes=2/standby=false"
	want := []string{"do=send" + one, "do=read" + one, "do=send" + two, "do=read" + two, "do=half" + one, "do=half" + two}
	if got := variants; !slices.Equal(got, want) {
		t.Errorf("runs %q, want %q", got, want)
	}
}

// Growth measures each operation in each size, and the filled logs break no promise.
func TestGrowth(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots a server")
	}
	c := small(t, "growth")
	c.Entries, c.Rosters, c.Convos, c.Joins = []int{400, 4000}, []int{3, 120}, 2, 5
	c.For = 200 * time.Millisecond
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Verdict.Kept() || r.Verdict.Sent == 0 || r.Verdict.Stored != r.Verdict.Sent {
		t.Errorf("%+v", r.Verdict)
	}
	var variants []string
	for _, run := range r.Turns {
		variants = append(variants, run.Variant)
		if op := run.Operations[run.Main]; op == nil || op.Done == 0 || len(op.Failed) > 0 {
			t.Errorf("%s: %+v", run.Variant, op)
		}
	}
	var want []string
	for _, size := range []string{"entries=400/convos=2/members=3", "entries=4000/convos=2/members=3",
		"entries=400/convos=1/members=3", "entries=400/convos=1/members=120"} {
		for _, do := range []string{"send", "send-full", "page", "convos"} {
			want = append(want, "do="+do+"/"+size)
		}
	}
	if want = append(want, "do=claim", "do=join"); !slices.Equal(variants, want) {
		t.Errorf("runs %q, want %q", variants, want)
	}
}

func TestBadConfigs(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		`no scenario "nonsense"`: func(c *Config) { c.Scenario = "nonsense" },
		`auth is "nonsense"`:     func(c *Config) { c.Auth = []string{"nonsense"} },
		"body is 10":             func(c *Config) { c.Body = 10 },
		"in-flight is 0":         func(c *Config) { c.InFlight = 0 },
		"members is 1":           func(c *Config) { c.Members = 1 },
		"fewest nodes is 0":      func(c *Config) { c.Nodes = []int{2, 0} },
		"most nodes is 17":       func(c *Config) { c.Nodes = []int{2, 17} },
		"has no standby": func(c *Config) {
			c.Database, c.Standby = "postgres:///x", []bool{false, true}
		},
		"measures one server": func(c *Config) {
			c.Scenario, c.Binaries = "reconnect-storm", []testbed.Binary{{Name: "a"}, {Name: "b"}}
		},
		"service-auth tokens only": func(c *Config) { c.Scenario, c.Auth = "claim-storm", []string{AuthSession} },
		"--senders is 64":          func(c *Config) { c.Scenario, c.Subscribers = "fanout", 64*maxStreams+1 },
		"negative":                 func(c *Config) { c.Rate = -1 },
	} {
		c := Default()
		c.Scenario = "send-hot"
		change(&c)
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}
