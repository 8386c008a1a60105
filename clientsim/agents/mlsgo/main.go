// Command mlsgo is one device of mls-go whose state its caller keeps: the counterpart of an MLS
// library inside an app. The Swift client's tests play with it against a real server. It reads one
// JSON object per line and answers each with one. Bytes are base64.
//
// The first request is "load". "export" returns the state, as "load" takes it.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"mlsd/clientsim/mlsclient"
)

// longestLine is the longest request, in bytes: a state with some hundred KeyPackages.
const longestLine = 64 << 20

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mlsgo:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longestLine)
	a, answers := agent{}, json.NewEncoder(out)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return err
		}
		got, err := a.do(&r)
		if err != nil {
			got = answer{Error: err.Error()}
		}
		if err := answers.Encode(got); err != nil {
			return err
		}
	}
	return lines.Err()
}

// request is one operation. Which fields count depends on Op.
type request struct {
	Op         string   `json:"op"`
	Identity   string   `json:"identity"`
	Group      []byte   `json:"group"`
	Input      []byte   `json:"input"`
	Count      int      `json:"count"`
	LastResort bool     `json:"lastResort"`
	Add        [][]byte `json:"add"`
	Remove     []string `json:"remove"`
}

// answer is the answer to one operation. Epoch is absent if the device does not have the group.
type answer struct {
	Error     string   `json:"error,omitempty"`
	Output    []byte   `json:"output,omitempty"`
	Outputs   [][]byte `json:"outputs,omitempty"`
	Refs      []string `json:"refs,omitempty"`
	Group     []byte   `json:"group,omitempty"`
	Epoch     *uint64  `json:"epoch,omitempty"`
	DeviceID  string   `json:"deviceId,omitempty"`
	Suite     string   `json:"suite,omitempty"`
	Kind      string   `json:"kind,omitempty"` // commit, proposal, application
	Commit    []byte   `json:"commit,omitempty"`
	Welcome   []byte   `json:"welcome,omitempty"`
	GroupInfo []byte   `json:"groupInfo,omitempty"`
}

type agent struct{ device mlsclient.Device }

func (a *agent) do(r *request) (answer, error) {
	if r.Op == "load" {
		return a.load(r)
	}
	if a.device == nil {
		return answer{}, errors.New("nothing is loaded")
	}
	switch r.Op {
	case "export":
		state, err := a.device.Export()
		return answer{Output: state}, err
	case "keyPackages":
		return a.keyPackages(r)
	case "refs":
		return answer{Refs: a.device.Refs()}, nil
	case "create":
		_, err := a.device.Create(r.Group)
		return answer{}, err
	case "join":
		group, err := a.device.Join(r.Input)
		return stateOf(group, err)
	case "stageExternal":
		return a.stageExternal(r)
	case "confirmExternal":
		// A second call finds nothing staged: the device is in the group by then.
		group, err := a.device.ConfirmJoin(r.Group)
		if known, ok := a.device.Group(r.Group); err != nil && ok {
			group, err = known, nil
		}
		return stateOf(group, err)
	case "epoch":
		if group, ok := a.device.Group(r.Group); ok {
			return stateOf(group, nil)
		}
		return answer{}, nil
	}
	group, ok := a.device.Group(r.Group)
	if !ok {
		return answer{}, errors.New("the device does not have the group")
	}
	return inGroup(group, r)
}

func (a *agent) load(r *request) (answer, error) {
	var err error
	if len(r.Input) > 0 {
		a.device, err = mlsclient.ImportDevice(r.Input)
	} else {
		a.device, err = mlsclient.NewDevice(r.Identity, mlsclient.SuiteX25519)
	}
	if err != nil {
		return answer{}, err
	}
	id := sha256.Sum256(a.device.SignatureKey())
	return answer{DeviceID: hex.EncodeToString(id[:]), Suite: mlsclient.SuiteX25519.Name()}, nil
}

func (a *agent) keyPackages(r *request) (got answer, err error) {
	for range r.Count {
		var kp mlsclient.KeyPackage
		if r.LastResort {
			kp, err = a.device.LastResort()
		} else {
			kp, err = a.device.KeyPackage()
		}
		if err != nil {
			return answer{}, err
		}
		got.Outputs = append(got.Outputs, kp.Message)
	}
	return got, nil
}

func (a *agent) stageExternal(r *request) (answer, error) {
	info, err := mlsclient.ReadInfo(r.Input)
	if err != nil {
		return answer{}, err
	}
	prior := mlsclient.NoLeaf
	for _, leaf := range info.Leaves {
		if bytes.Equal(leaf.SignatureKey, a.device.SignatureKey()) {
			prior = int(leaf.Index)
		}
	}
	staged, err := a.device.JoinExternal(r.Input, prior)
	return stagedOf(info.GroupID, staged, err)
}

// inGroup does the operations on a group that the device has.
func inGroup(group mlsclient.Group, r *request) (answer, error) {
	switch r.Op {
	case "encrypt":
		message, err := group.Encrypt(r.Input)
		return answer{Output: message}, err
	case "groupInfo":
		info, err := group.GroupInfo()
		return answer{Output: info}, err
	case "process":
		return process(group, r.Input)
	case "stage":
		return stage(group, r)
	case "confirm":
		if group.Pending() == nil {
			return answer{}, nil
		}
		return answer{}, group.Confirm()
	case "discard":
		group.Discard()
		return answer{}, nil
	}
	return answer{}, fmt.Errorf("no operation %q", r.Op)
}

func process(group mlsclient.Group, message []byte) (answer, error) {
	got, err := group.Process(message)
	kind := "application"
	switch {
	case got.Commit:
		kind = "commit"
	case got.Proposal:
		kind = "proposal"
	}
	return answer{Kind: kind, Output: got.Plaintext}, err
}

// stage stages a commit. Without anything to do it answers with nothing.
func stage(group mlsclient.Group, r *request) (answer, error) {
	group.Discard()
	change := mlsclient.Change{Add: r.Add}
	for _, leaf := range group.Leaves() {
		if slices.Contains(r.Remove, leaf.Identity) {
			change.Remove = append(change.Remove, leaf.Index)
		}
	}
	if len(r.Remove) > 0 && len(change.Remove) == 0 {
		return answer{}, nil
	}
	staged, err := group.Stage(change)
	return stagedOf(group.ID(), staged, err)
}

func stagedOf(group []byte, staged *mlsclient.Staged, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	return answer{Group: group, Epoch: &staged.Epoch, Commit: staged.Commit, Welcome: staged.Welcome,
		GroupInfo: staged.GroupInfo}, nil
}

func stateOf(group mlsclient.Group, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	epoch := group.Epoch()
	return answer{Group: group.ID(), Epoch: &epoch}, nil
}
