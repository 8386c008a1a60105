package mlsclient

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// update writes the captures that the tests of package mls read.
var update = flag.Bool("update", false, "write mls/testdata")

// captureFolder is where the captures are.
const captureFolder = "../../mls/testdata"

// capture has the objects that a library made for one group. Package mls parses and verifies them.
type capture struct {
	Library   string        `json:"library"`
	Suite     Suite         `json:"suite"`
	Taken     time.Time     `json:"taken"`
	GroupInfo []byte        `json:"groupInfo"` // GroupInfo of epoch 0
	Steps     []captureStep `json:"steps"`
	Message   []byte        `json:"message"` // an application message of the last epoch
}

// captureStep is one commit.
type captureStep struct {
	What        string   `json:"what"`
	KeyPackages [][]byte `json:"keyPackages,omitempty"` // KeyPackages of the added devices
	Commit      []byte   `json:"commit"`
	Welcome     []byte   `json:"welcome,omitempty"`
	GroupInfo   []byte   `json:"groupInfo"` // GroupInfo of the epoch that the commit creates
	Members     []string `json:"members"`   // members after the commit
}

// captured is a group while it is captured.
type captured struct {
	t       *testing.T
	capture capture
	members []Group
}

// Each library makes a group of its own, and package mls must accept its objects. The agents are
// started from the folder that MLSD_MLS_AGENTS names.
func TestAgents(t *testing.T) {
	t.Parallel()
	folder := os.Getenv("MLSD_MLS_AGENTS")
	if folder == "" {
		t.Skip("MLSD_MLS_AGENTS is not set: no agents of other MLS libraries (clientsim/agents/README.md)")
	}
	agents, err := StartAgents(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	libraries := []Library{Go()}
	for _, a := range agents {
		libraries = append(libraries, a.Library())
	}
	for _, library := range libraries {
		for _, suite := range []Suite{SuiteX25519, SuiteP256} {
			got := captureGroup(t, library, suite)
			if *update {
				writeCapture(t, got)
			}
		}
	}
	for _, a := range agents {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

func writeCapture(t *testing.T, c capture) {
	t.Helper()
	data, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(captureFolder, fmt.Sprintf("%s-suite%d.json", c.Library, c.Suite))
	if err := os.WriteFile(name, append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// captureGroup takes a group through every kind of commit.
func captureGroup(t *testing.T, library Library, suite Suite) capture {
	t.Helper()
	device := func(name string) Device {
		d, err := library.NewDevice("did:plc:"+name, suite)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	alice, bob, carol, dave := device("alice"), device("bob"), device("carol"), device("dave")
	a, err := alice.Create([]byte("capture " + library.Name))
	if err != nil {
		t.Fatal(err)
	}
	c := &captured{
		t: t, members: []Group{a},
		capture: capture{Library: library.Name, Suite: suite, Taken: time.Now().UTC().Truncate(time.Second),
			GroupInfo: mustInfo(t, a)},
	}
	c.add("add two", a, bob, carol)
	b := c.members[1]
	c.commit("update", b, Change{})
	alice.HideHandshakes(true)
	c.commit("hidden update", a, Change{})
	alice.HideHandshakes(false)
	d := c.external("external join", dave, NoLeaf)
	c.commit("remove", a, Change{Remove: []uint32{b.Own()}})
	again := mustReborn(t, dave, true)
	c.members = c.members[:len(c.members)-1]
	c.external("external rejoin", again, int(d.Own()))
	c.add("add again", c.members[len(c.members)-1], bob)
	message, err := a.Encrypt([]byte("hello from " + library.Name))
	if err != nil {
		t.Fatal(err)
	}
	c.capture.Message = message
	return c.capture
}

// commit stages a commit by a member, and makes all other members process it.
func (c *captured) commit(what string, by Group, change Change, joiners ...Device) {
	c.t.Helper()
	staged, err := by.Stage(change)
	if err != nil {
		c.t.Fatalf("%s: %s: %v", c.capture.Library, what, err)
	}
	gone := map[uint32]bool{}
	for _, leaf := range change.Remove {
		gone[leaf] = true
	}
	var stay []Group
	for _, g := range c.members {
		if gone[g.Own()] { // not every library reads its own removal
			continue
		}
		if _, err := g.Process(staged.Commit); err != nil {
			c.t.Fatalf("%s: %s: %v", c.capture.Library, what, err)
		}
		stay = append(stay, g)
	}
	c.members = stay
	for _, d := range joiners {
		g, err := d.Join(staged.Welcome)
		if err != nil {
			c.t.Fatalf("%s: %s: %v", c.capture.Library, what, err)
		}
		c.members = append(c.members, g)
	}
	c.record(what, staged, change.Add)
}

func (c *captured) add(what string, by Group, joiners ...Device) {
	c.t.Helper()
	var change Change
	for _, d := range joiners {
		change.Add = append(change.Add, mustPackage(c.t, d).Message)
	}
	c.commit(what, by, change, joiners...)
}

// external makes a device join by external commit.
func (c *captured) external(what string, d Device, prior int) Group {
	c.t.Helper()
	staged, err := d.JoinExternal(mustInfo(c.t, c.members[0]), prior)
	if err != nil {
		c.t.Fatalf("%s: %s: %v", c.capture.Library, what, err)
	}
	for _, g := range c.members {
		if _, err := g.Process(staged.Commit); err != nil {
			c.t.Fatalf("%s: %s: %v", c.capture.Library, what, err)
		}
	}
	g, err := d.ConfirmJoin(c.members[0].ID())
	if err != nil {
		c.t.Fatalf("%s: %s: %v", c.capture.Library, what, err)
	}
	c.members = append(c.members, g)
	c.record(what, staged, nil)
	return g
}

func (c *captured) record(what string, staged *Staged, added [][]byte) {
	c.t.Helper()
	sameEpoch(c.t, c.members...)
	c.capture.Steps = append(c.capture.Steps, captureStep{
		What: what, KeyPackages: added, Commit: staged.Commit, Welcome: staged.Welcome, GroupInfo: staged.GroupInfo,
		Members: c.members[0].Members(),
	})
}

// An agent that dies, or gives another answer, causes an error and not a wait.
func TestBrokenAgents(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"it exits":        `exit 0`,
		"not JSON":        `read line; echo 'hello'; cat >/dev/null`,
		"an error":        `read line; echo '{"error":"device: no suite 9"}'; cat >/dev/null`,
		"without a state": `read line; echo '{"signatureKey":"AA=="}'; read line; echo '{}'; cat >/dev/null`,
	} {
		a, err := startAgent(t.Context(), "fake", []string{"sh", "-c", script})
		if err != nil {
			t.Fatal(err)
		}
		d, err := a.NewDevice("did:plc:alice", SuiteX25519)
		if name == "without a state" {
			if err != nil {
				t.Fatal(err)
			}
			_, err = d.Create([]byte("group"))
		}
		if err == nil || !strings.Contains(err.Error(), "agent fake") {
			t.Errorf("%s: %v", name, err)
		}
		if err := a.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
