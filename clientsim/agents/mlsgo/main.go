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
	"strings"

	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
)

// longestLine is the longest request, in bytes: a state with some hundred KeyPackages.
const longestLine = 64 << 20

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mlsgo:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) (err error) {
	defer Catch(&err)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, longestLine)
	a, answers := agent{}, json.NewEncoder(out)
	for lines.Scan() {
		var r request
		Check(json.Unmarshal(lines.Bytes(), &r))
		got, err := a.do(&r)
		if err != nil {
			got = answer{Error: err.Error()}
		}
		Check(answers.Encode(got))
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
	Devices    [][]byte `json:"devices"` // signature keys of leaves to remove
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
	Key       []byte   `json:"signatureKey,omitempty"`
	Suite     string   `json:"suite,omitempty"`
	Kind      string   `json:"kind,omitempty"` // commit, proposal, application
	Commit    []byte   `json:"commit,omitempty"`
	Welcome   []byte   `json:"welcome,omitempty"`
	GroupInfo []byte   `json:"groupInfo,omitempty"`
	// Of a message that was read: who sent it, and whether the sender has entered by it.
	From     *leaf `json:"from,omitempty"`
	External bool  `json:"external,omitempty"`
	// Of a group, a Welcome, a GroupInfo or a KeyPackage.
	Members []leaf `json:"members,omitempty"`
}

type leaf struct {
	Identity string `json:"identity"`
	Key      []byte `json:"signatureKey"`
}

type agent struct{ device mlsclient.Device }

// do does an operation, and answers with what the steps of it give.
func (a *agent) do(r *request) (_ answer, err error) {
	defer Catch(&err)
	if r.Op == "load" {
		return a.load(r), nil
	}
	if a.device == nil {
		return answer{}, errors.New("nothing is loaded")
	}
	switch r.Op {
	case "export":
		return answer{Output: Must(a.device.Export())}, nil
	case "keyPackages":
		return a.keyPackages(r), nil
	case "refs":
		return answer{Refs: a.device.Refs()}, nil
	case "create":
		Must(a.device.Create(r.Group))
		return answer{}, nil
	case "join":
		return stateOf(Must(a.device.Join(r.Input))), nil
	case "readWelcome":
		// A copy joins: the device itself stays as it is.
		scratch := Must(mlsclient.ImportDevice(Must(a.device.Export())))
		return stateOf(Must(scratch.Join(r.Input))), nil
	case "readGroupInfo":
		info := Must(mlsclient.ReadInfo(r.Input))
		return answer{Group: info.GroupID, Epoch: &info.Epoch, Members: membersOf(info.Leaves)}, nil
	case "readKeyPackage":
		return answer{Members: membersOf([]mlsclient.Leaf{Must(mlsclient.PackageLeaf(r.Input))})}, nil
	case "stageExternal":
		return a.stageExternal(r), nil
	case "confirmExternal":
		// A second call finds nothing staged: the device is in the group by then.
		group, err := a.device.ConfirmJoin(r.Group)
		if known, ok := a.device.Group(r.Group); err != nil && ok {
			group, err = known, nil
		}
		return stateOf(Must(group, err)), nil
	case "epoch":
		if group, ok := a.device.Group(r.Group); ok {
			return stateOf(group), nil
		}
		return answer{}, nil
	}
	group, ok := a.device.Group(r.Group)
	if !ok {
		return answer{}, errors.New("the device does not have the group")
	}
	return inGroup(group, r), nil
}

func (a *agent) load(r *request) answer {
	if len(r.Input) > 0 {
		a.device = Must(mlsclient.ImportDevice(r.Input))
	} else {
		a.device = Must(mlsclient.NewDevice(r.Identity, mlsclient.SuiteX25519))
	}
	key := a.device.SignatureKey()
	id := sha256.Sum256(key)
	return answer{DeviceID: hex.EncodeToString(id[:]), Key: key, Suite: mlsclient.SuiteX25519.Name()}
}

func (a *agent) keyPackages(r *request) (got answer) {
	next := a.device.KeyPackage
	if r.LastResort {
		next = a.device.LastResort
	}
	for range r.Count {
		got.Outputs = append(got.Outputs, Must(next()).Message)
	}
	return got
}

func (a *agent) stageExternal(r *request) answer {
	info := Must(mlsclient.ReadInfo(r.Input))
	prior := mlsclient.NoLeaf
	for _, leaf := range info.Leaves {
		if bytes.Equal(leaf.SignatureKey, a.device.SignatureKey()) {
			prior = int(leaf.Index)
		}
	}
	return stagedOf(info.GroupID, Must(a.device.JoinExternal(r.Input, prior)))
}

// inGroup does the operations on a group that the device has.
func inGroup(group mlsclient.Group, r *request) answer {
	switch r.Op {
	case "encrypt":
		return answer{Output: Must(group.Encrypt(r.Input))}
	case "authenticator":
		return answer{Output: group.Authenticator()}
	case "groupInfo":
		return answer{Output: Must(group.GroupInfo())}
	case "process":
		return process(group, r.Input)
	case "stage":
		return stage(group, r)
	case "confirm":
		if group.Pending() != nil {
			Check(group.Confirm())
		}
	case "discard":
		group.Discard()
	default:
		Fail("no operation %q", r.Op)
	}
	return answer{}
}

func process(group mlsclient.Group, message []byte) answer {
	got := Must(group.Process(message))
	kind := "application"
	switch {
	case got.Commit:
		kind = "commit"
	case got.Proposal:
		kind = "proposal"
	}
	from := leaf{Identity: got.From.Identity, Key: got.From.SignatureKey}
	return answer{Kind: kind, Output: got.Plaintext, From: &from, External: got.External}
}

// stage stages a commit. Without anything to do it answers with nothing.
func stage(group mlsclient.Group, r *request) answer {
	group.Discard()
	change := mlsclient.Change{Add: r.Add}
	for _, leaf := range group.Leaves() {
		is := func(key []byte) bool { return bytes.Equal(key, leaf.SignatureKey) }
		person, _, _ := strings.Cut(leaf.Identity, "#")
		if slices.Contains(r.Remove, person) || slices.ContainsFunc(r.Devices, is) {
			change.Remove = append(change.Remove, leaf.Index)
		}
	}
	if len(r.Remove)+len(r.Devices) > 0 && len(change.Remove) == 0 {
		return answer{}
	}
	return stagedOf(group.ID(), Must(group.Stage(change)))
}

func stagedOf(group []byte, staged *mlsclient.Staged) answer {
	return answer{Group: group, Epoch: &staged.Epoch, Commit: staged.Commit, Welcome: staged.Welcome,
		GroupInfo: staged.GroupInfo}
}

func stateOf(group mlsclient.Group) answer {
	epoch := group.Epoch()
	return answer{Group: group.ID(), Epoch: &epoch, Members: membersOf(group.Leaves())}
}

func membersOf(leaves []mlsclient.Leaf) []leaf {
	members := make([]leaf, len(leaves))
	for i, one := range leaves {
		members[i] = leaf{Identity: one.Identity, Key: one.SignatureKey}
	}
	return members
}
