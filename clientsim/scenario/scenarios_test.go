package scenario

import (
	"context"
	"net/http"
	"strings"
	"testing"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/testbed/testbedtest"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/pgtest"
	"mlsd/internal/terminal"
)

// bootServer starts a mlsd for a whole test.
func bootServer(t *testing.T) testbed.Target {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a server")
	}
	dir := testbedtest.Directory(t)
	server := testbedtest.Server(t, dir, map[string]string{"MLSD_DATABASE_URL": pgtest.URL(t)})
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 128
	t.Cleanup(transport.CloseIdleConnections)
	return testbed.Target{Base: server.URL(), Audience: xrpc.DefaultServiceDID, Transport: transport, Dir: dir}
}

func playNamed(t *testing.T, name string, to testbed.Target, o testbed.Options) Result {
	t.Helper()
	chosen, err := choose([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Options: o}
	return c.play(context.WithoutCancel(t.Context()), chosen[0], to, terminal.New(nil))
}

// Without agents, the scenario of other MLS libraries is skipped and says what it needs. If a
// folder is named and has no agents, a promise is broken: somebody asked for agents.
func TestLibrariesWithoutAgents(t *testing.T) {
	t.Parallel()
	for name, play := range map[string]func(context.Context, *testbed.World){
		"mls-libraries": Libraries, "large-library-group": LargeLibraryGroup,
		"bad-proposals-libraries": BadProposalsLibraries,
	} {
		if got := playNamed(t, name, testbed.Target{}, testbed.Options{}); !strings.Contains(got.Skipped, "--agents") {
			t.Errorf("%s was played without agents: %+v", name, got)
		}
		w := testbed.NewWorld(testbed.Target{}, testbed.Options{Agents: t.TempDir()}, 1, func(string) {})
		if err := Attempt(func() { play(t.Context(), w) }); err == nil || !strings.Contains(err.Error(), "no agent in") {
			t.Errorf("%s with an empty folder of agents: %v", name, err)
		}
	}
}

// Without other versions, the scenario of upgrades is skipped and says what it needs.
func TestUpgradeWithoutBinaries(t *testing.T) {
	t.Parallel()
	server := testbed.NewProc("none", t.TempDir(), "http://localhost", xrpc.DefaultServiceDID)
	if got := playNamed(t, "rolling-upgrade", testbed.Target{Server: server},
		testbed.Options{}); !strings.Contains(got.Skipped, "--upgrade") {
		t.Errorf("played without binaries: %+v", got)
	}
}

// Without cores to give, the growth of a network is not measured.
func TestGrowthWithoutCores(t *testing.T) {
	t.Parallel()
	server := testbed.NewProc("none", t.TempDir(), "http://localhost", xrpc.DefaultServiceDID)
	if got := playNamed(t, "network-growth", testbed.Target{Server: server},
		testbed.Options{}); !strings.Contains(got.Skipped, "--cores") {
		t.Errorf("played without cores: %+v", got)
	}
}

func TestChooseRefusesUnknownNames(t *testing.T) {
	t.Parallel()
	if _, err := choose([]string{"lost-answer", "nonsense"}); err == nil {
		t.Error("an unknown scenario was chosen")
	}
	if all, err := choose(nil); err != nil || len(all) != len(Scenarios()) {
		t.Errorf("no names chose %d scenarios, %v", len(all), err)
	}
}

// Without a server of its own, a scenario that needs one is skipped and says why.
func TestForeignServerIsNotKilled(t *testing.T) {
	t.Parallel()
	for _, s := range Scenarios() {
		if !s.Control {
			continue
		}
		if got := playNamed(t, s.Name, testbed.Target{}, testbed.Options{}); got.Skipped == "" {
			t.Errorf("%s was played", s.Name)
		}
	}
}
