package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"mlsd/clientsim/testbed"
)

// server builds the server once for all tests.
var server struct {
	sync.Once
	dir, binary string
	err         error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if server.dir != "" {
		if err := os.RemoveAll(server.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// small returns a small configuration for tests.
func small(t *testing.T, scenario string) Config {
	server.Do(func() {
		if server.dir, server.err = os.MkdirTemp("", "mlsd-bench-test-"); server.err == nil {
			server.binary, server.err = testbed.BuildServer(context.Background(), server.dir, testbed.BenchTag)
		}
	})
	if server.err != nil {
		t.Fatal(server.err)
	}
	c := Default()
	c.Binaries = []Binary{{Path: server.binary}}
	c.Scenario, c.Seed, c.InFlight, c.Turns, c.Senders, c.Convos, c.Members = scenario, 1, 16, 1, 8, 10, 4
	c.For, c.Warm, c.Joins, c.Subscribers, c.Rate = 500*time.Millisecond, 100*time.Millisecond, 20, 20, 0
	return c
}

// A server is killed under load, answers are dropped and requests are sent twice at once. Nothing
// is lost or doubled.
func TestFaults(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	c := small(t, "send-hot")
	c.Convos, c.Members, c.Servers, c.Variants = 1, 8, 2, []string{batched}
	c.Faults, c.For, c.KillEvery = true, 3*time.Second, 1200*time.Millisecond
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

// Servers take turns as variants, at the same address and on the same database.
func TestServersTakeTurns(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("boots servers")
	}
	for scenario, want := range map[string]string{
		"send-hot":      "old new old new",
		"welcome-storm": "calm, old storm, old calm, new storm, new calm, old storm, old calm, new storm, new",
	} {
		t.Run(scenario, func(t *testing.T) {
			c := small(t, scenario)
			c.Turns, c.Binaries = 2, []Binary{{Name: "old", Path: server.binary}, {Name: "new", Path: server.binary}}
			r, err := Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Verdict.Kept() || r.Verdict.Sent == 0 || r.Verdict.Stored != r.Verdict.Sent || r.Verdict.Kills > 0 {
				t.Errorf("%+v", r.Verdict)
			}
			var variants []string
			for _, run := range r.Runs {
				variants = append(variants, run.Variant)
				for name, op := range run.Operations {
					if op.Done == 0 || len(op.Failed) > 0 {
						t.Errorf("%s, turn %d: %s: %+v", run.Variant, run.Turn, name, op)
					}
				}
			}
			if got := strings.Join(variants, " "); got != want {
				t.Errorf("variants %q, want %q", got, want)
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
	c.Messages, c.Variants, c.For = 5, []string{batched}, time.Minute
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
		operations []string // in the last run
	}{
		"send-spread":     {"batched alone ceiling", []string{"sendMessage"}},
		"mixed":           {"batched alone", []string{"sendMessage", "getMessages", "updateCursor"}},
		"welcome-storm":   {"calm storm", []string{"sendMessage", "getWelcome", "confirmWelcome"}},
		"claim-storm":     {"calm storm", []string{"sendMessage", "getKeyPackages"}},
		"reconnect-storm": {"calm storm", []string{"sendMessage", "subscribeConvoEvents"}},
		"half":            {"maximum half", []string{"sendMessage"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := small(t, name)
			r, err := Run(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Verdict.Kept() || r.Verdict.Sent == 0 || r.Verdict.Stored != r.Verdict.Sent {
				t.Errorf("%+v", r.Verdict)
			}
			var variants []string
			for _, run := range r.Runs {
				variants = append(variants, run.Variant)
				if run.Spent.Load == 0 || run.Took == 0 || run.Load.Servers != 1 {
					t.Errorf("%s: %+v", run.Variant, run)
				}
			}
			if got := strings.Join(variants, " "); got != want.variants {
				t.Errorf("variants %q, want %q", got, want.variants)
			}
			last := r.Runs[len(r.Runs)-1]
			for _, op := range want.operations {
				if o := last.Operations[op]; o == nil || o.Done == 0 || len(o.Failed) > 0 || o.Latency.TotalCount() != o.Done {
					t.Errorf("%s: %+v", op, o)
				}
			}
			if r.Database.Settings["fsync"] != "on" || r.Machine.Cores == 0 || r.Machine.Server == "" {
				t.Errorf("%+v %+v", r.Database, r.Machine)
			}
		})
	}
}

func TestBadConfigs(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*Config){
		`no scenario "nonsense"`: func(c *Config) { c.Scenario = "nonsense" },
		`no variant "nonsense"`:  func(c *Config) { c.Variants = []string{"nonsense"} },
		"curve":                  func(c *Config) { c.Curve = "ed25519" },
		"body is 10":             func(c *Config) { c.Body = 10 },
		"in-flight is 0":         func(c *Config) { c.InFlight = 0 },
		"two members":            func(c *Config) { c.Members = 1 },
		"negative":               func(c *Config) { c.Rate = -1 },
	} {
		c := Default()
		c.Scenario = "send-hot"
		change(&c)
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}
