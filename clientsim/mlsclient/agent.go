package mlsclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"

	. "mlsd/clientsim/steps"
	"mlsd/internal/errs"
)

// Library is an MLS library that makes devices.
type Library struct {
	Name      string
	NewDevice func(identity string, suite Suite) (Device, error)
}

// Go is the library of this process.
func Go() Library { return Library{Name: "mls-go", NewDevice: NewDevice} }

// Agent is a process that holds devices of another MLS library. clientsim/agents has their sources,
// and describes the JSON lines they read and write. It is safe for concurrent use.
type Agent struct {
	name string
	cmd  *exec.Cmd

	mu      sync.Mutex // guards the fields below; one request at a time
	in      io.WriteCloser
	out     *bufio.Reader
	devices int
}

// agentCommands are the agents that clientsim/agents/build.sh builds into a folder, by the names of
// their libraries. The last word of a command is a file in the folder.
var agentCommands = []struct {
	name    string
	command []string
}{
	{"openmls", []string{"openmls-agent"}},
	{"ts-mls", []string{"node", filepath.Join("tsmls", "agent.mjs")}},
}

// StartAgents starts the agents that a folder has. The agents end when ctx ends or Close is called.
// If the folder has no agents, it returns none and no error.
func StartAgents(ctx context.Context, dir string) (_ []*Agent, err error) {
	var agents []*Agent
	defer func() {
		if err != nil {
			for _, a := range agents {
				err = errors.Join(err, a.Close())
			}
		}
	}()
	for _, known := range agentCommands {
		words := append([]string{}, known.command...)
		last := len(words) - 1
		words[last] = filepath.Join(dir, words[last])
		if _, err := os.Stat(words[last]); errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("agent %s: %w", known.name, err)
		}
		a, err := startAgent(ctx, known.name, words)
		if err != nil {
			return nil, err
		}
		agents = append(agents, a)
	}
	return agents, nil
}

func startAgent(ctx context.Context, name string, command []string) (_ *Agent, err error) {
	defer CatchIn(&err, "agent %s", name)
	a := &Agent{name: name, cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	a.cmd.Stderr = os.Stderr
	a.in, a.out = Must(a.cmd.StdinPipe()), bufio.NewReader(Must(a.cmd.StdoutPipe()))
	return a, a.cmd.Start()
}

// Library returns the agent's library.
func (a *Agent) Library() Library { return Library{Name: a.name, NewDevice: a.NewDevice} }

// Close ends the agent and waits for it.
func (a *Agent) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return errs.Wrap(errors.Join(a.in.Close(), a.cmd.Wait()), "agent %s", a.name)
}

// agentRequest is one operation on one device. Which fields count depends on the operation.
type agentRequest struct {
	Op       string   `json:"op"`
	Device   string   `json:"device"`
	Former   string   `json:"former,omitempty"`
	Identity string   `json:"identity,omitempty"`
	Suite    Suite    `json:"suite,omitempty"`
	Group    []byte   `json:"group,omitempty"`
	Input    []byte   `json:"input,omitempty"`
	Add      [][]byte `json:"add,omitempty"`
	Remove   []uint32 `json:"remove,omitempty"`
	Hidden   bool     `json:"hidden,omitempty"`
	Proposal Proposal `json:"proposal,omitempty"`
	Secret   []byte   `json:"secret,omitempty"`
}

// agentAnswer is the answer to an agentRequest.
type agentAnswer struct {
	Error        string      `json:"error"`
	SignatureKey []byte      `json:"signatureKey"`
	Output       []byte      `json:"output"`
	Staged       *agentStage `json:"staged"`
	Received     *struct {
		Commit    bool   `json:"commit"`
		Proposal  bool   `json:"proposal"`
		Sender    string `json:"sender"`
		Plaintext []byte `json:"plaintext"`
	} `json:"received"`
	State *agentState `json:"state"`
}

type agentStage struct {
	Group     []byte `json:"group"`
	Epoch     uint64 `json:"epoch"`
	Commit    []byte `json:"commit"`
	Welcome   []byte `json:"welcome"`
	GroupInfo []byte `json:"groupInfo"`
}

func (s *agentStage) staged() *Staged {
	return &Staged{Epoch: s.Epoch, Commit: s.Commit, Welcome: s.Welcome, GroupInfo: s.GroupInfo}
}

// agentState is what a device knows of a group.
type agentState struct {
	Group         []byte `json:"group"`
	Epoch         uint64 `json:"epoch"`
	Authenticator []byte `json:"authenticator"`
	Own           uint32 `json:"own"`
	Leaves        []struct {
		Index        uint32 `json:"index"`
		Identity     string `json:"identity"`
		SignatureKey []byte `json:"signatureKey"`
	} `json:"leaves"`
}

// do sends a request and reads its answer. An answer must have what the operation returns.
func (a *Agent) do(request agentRequest) (answer agentAnswer, err error) {
	defer CatchIn(&err, "agent %s: %s", a.name, request.Op)
	line := Must(json.Marshal(request))
	a.mu.Lock()
	defer a.mu.Unlock()
	Must(a.in.Write(append(line, '\n')))
	Check(json.Unmarshal(Must(a.out.ReadBytes('\n')), &answer))
	if answer.Error != "" {
		Fail("%s", answer.Error)
	}
	return answer, nil
}

// nextName names a new device within the agent.
func (a *Agent) nextName() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.devices++
	return strconv.Itoa(a.devices)
}
