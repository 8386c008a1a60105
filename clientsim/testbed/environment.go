package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// Binary is a server program to start. Its name tells it from other binaries in a comparison.
type Binary struct{ Name, Path string }

// CheckBinaries refuses several servers whose names do not tell them apart.
func CheckBinaries(all []Binary) error {
	names := map[string]bool{}
	for _, one := range all {
		if len(all) > 1 && one.Name == "" || names[one.Name] {
			return fmt.Errorf("several servers need a NAME=PATH each, and %q is none, or its name comes twice", one.Path)
		}
		names[one.Name] = true
	}
	return nil
}

// findBinaries finds the programs, or builds one into dir if there is none.
func findBinaries(ctx context.Context, all []Binary, dir string) ([]Binary, error) {
	if len(all) == 0 {
		all = []Binary{{}}
	}
	found := slices.Clone(all)
	for i := range found {
		var err error
		if found[i].Path, err = FindServer(ctx, found[i].Path, dir); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Environment is what servers of ours need: a directory for their files, a directory of accounts,
// and a PostgreSQL. Everything is on this machine.
type Environment struct {
	Home     string // every account of this machine can enter it
	Dir      *Directory
	Binaries []Binary // at least one
	// ServiceDID is the DID of the servers.
	ServiceDID string
	// Defaults makes servers run as operators would run them: with the default limits, and without
	// failpoints.
	Defaults bool
	Postgres *Postmaster // nil until StartPostgres
	Nodes    []*Proc     // the servers that RunNodes started last

	servers []*Proc // all servers
	nodes   []*Proc // all servers that RunNodes has made
}

// NewEnvironment makes an environment without a PostgreSQL. binaries are the servers to start.
// Without binaries, it finds or builds one. The directory of accounts listens at plcListen.
func NewEnvironment(ctx context.Context, plcListen string, binaries ...Binary) (*Environment, error) {
	e := &Environment{ServiceDID: xrpc.DefaultServiceDID}
	if err := Attempt(func() {
		e.Dir = Must(NewDirectory(plcListen))
		e.Home = Must(os.MkdirTemp("", "clientsim-"))
		// A server started by root runs its database as another user, who needs access to the data
		// directory.
		Check(os.Chmod(e.Home, 0o755))
		e.Binaries = Must(findBinaries(ctx, binaries, e.Home))
	}); err != nil {
		return nil, errors.Join(err, e.Close(ctx))
	}
	return e, nil
}

// Server prepares a server that is not started yet, with files and, by default, a PostgreSQL of its
// own. Close stops it.
func (e *Environment) Server(name string) *Proc {
	p := NewProc(e.Binaries[0].Path, filepath.Join(e.Home, name), e.Dir.URL, e.ServiceDID)
	if e.Defaults {
		p.useDefaults()
	}
	e.servers = append(e.servers, p)
	return p
}

// StartPostgres starts a PostgreSQL for several servers. A server makes the database and migrates
// it. Then PostgreSQL runs alone, so that servers can be killed. If prepare is not nil, it gets the
// Postmaster before the start.
func (e *Environment) StartPostgres(ctx context.Context, prepare func(*Postmaster)) (err error) {
	defer Catch(&err)
	owner := e.Server("data")
	Check(owner.Start(ctx, nil))
	postgres := Must(owner.Detach(ctx))
	if prepare != nil {
		prepare(postgres)
	}
	Check(postgres.Start(ctx))
	e.Postgres = postgres
	return nil
}

// RunNodes stops the nodes, and starts n nodes of a binary. settings name their database. A node
// keeps its address.
func (e *Environment) RunNodes(ctx context.Context, n int, binary Binary, settings map[string]string) (err error) {
	defer Catch(&err)
	running := e.Nodes
	Each(max(len(running), 1), len(running), func(i int) { Check(running[i].Stop()) })
	for len(e.nodes) < n {
		e.nodes = append(e.nodes, e.Server(fmt.Sprintf("node-%d", len(e.nodes)+1)))
	}
	e.Nodes = e.nodes[:n]
	Each(n, n, func(i int) {
		e.Nodes[i].UseBinary(binary.Path)
		Check(e.Nodes[i].Start(ctx, settings))
	})
	return nil
}

// World makes a world whose server is one of the environment's.
func (e *Environment) World(server *Proc, transport http.RoundTripper, o Options, salt uint64,
	progress func(string)) *World {
	return NewWorld(Target{
		Base: server.URL(), Audience: e.ServiceDID, Transport: transport, Server: server, Dir: e.Dir,
	}, o, salt, progress)
}

// Account makes an account that the servers can look up. Even serials have a K-256 key, odd ones a
// P-256 key.
func (e *Environment) Account(serial int) (_ *xrpc.Account, err error) {
	defer Catch(&err)
	a := Must(xrpc.NewAccount(serial))
	return a, e.Dir.Register(a)
}

// Stop stops the servers and the PostgreSQL.
func (e *Environment) Stop() error {
	var errs []error
	for _, p := range e.servers {
		errs = append(errs, p.Stop())
	}
	if e.Postgres != nil {
		errs = append(errs, e.Postgres.Stop())
	}
	return errors.Join(errs...)
}

// Close stops everything and removes all files.
func (e *Environment) Close(ctx context.Context) error {
	errs := []error{e.Stop()}
	if e.Dir != nil {
		errs = append(errs, e.Dir.Close())
	}
	if e.Home != "" {
		errs = append(errs, os.RemoveAll(e.Home))
	}
	return errors.Join(errs...)
}

// Publish publishes KeyPackages of a new device, as PublishOf does.
func Publish(ctx context.Context, c *xrpc.Client, who *xrpc.Account, n int,
	lastResort bool) (_ []mlsclient.KeyPackage, err error) {
	defer Catch(&err)
	device := Must(mlsclient.NewDevice(who.DID.String(), mlsclient.SuiteX25519))
	return PublishOf(ctx, c, who, device, n, lastResort)
}

// PublishOf publishes n KeyPackages of a device, and a last-resort KeyPackage if lastResort is set.
// It returns all of them.
func PublishOf(
	ctx context.Context, c *xrpc.Client, who *xrpc.Account, device mlsclient.Device, n int, lastResort bool,
) (_ []mlsclient.KeyPackage, err error) {
	defer Catch(&err)
	var packages []mlsclient.KeyPackage
	for range n {
		kp := Must(device.KeyPackage())
		packages = append(packages, kp)
	}
	if lastResort {
		packages = append(packages, Must(device.LastResort()))
	}
	_, err = c.Do(ctx, who, xrpc.PublishManyCall(packages, mlsclient.SuiteX25519, xrpc.NewKey()))
	return packages, err
}

// NewConvo makes a convo in epoch 1, of a group that nobody has. welcome may be nil.
func NewConvo(ctx context.Context, c *xrpc.Client, creator *xrpc.Account, others []syntax.DID,
	welcome []byte) (id string, group []byte, err error) {
	defer Catch(&err)
	group = mlsclient.RandomBytes(16)
	founded := &mlsclient.Staged{Epoch: 1, Welcome: welcome}
	call := xrpc.CreateCall(group, mlsclient.SuiteX25519, others, founded, xrpc.NewKey())
	out := Must(xrpc.Ask[mlsapi.CreateConvoOutput](ctx, c, creator, call))
	return out.ID, group, nil
}

// FindServer returns the path of a mlsd binary: the given one, else the one beside this executable,
// else one that it builds into dir.
func FindServer(ctx context.Context, given, dir string) (string, error) {
	if given != "" {
		return exec.LookPath(given)
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "mlsd")
		if info, err := os.Stat(beside); err == nil && !info.IsDir() {
			return beside, nil
		}
	}
	return BuildServer(ctx, dir)
}

// BuildServer builds mlsd into dir, from the module of the working directory, with the given flags
// of go build.
func BuildServer(ctx context.Context, dir string, flags ...string) (string, error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", fmt.Errorf("no mlsd to run: name one with --mlsd, or run inside its module: %w", err)
	}
	return BuildServerFrom(ctx, root, filepath.Join(dir, "mlsd"), flags...)
}

// BuildServerFrom builds the mlsd whose source is in the directory root.
func BuildServerFrom(ctx context.Context, root, binary string, flags ...string) (string, error) {
	command := exec.CommandContext(ctx, "go",
		slices.Concat([]string{"build", "-o", binary}, flags, []string{"./cmd/mlsd"})...)
	command.Dir = root
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build mlsd: %w\n%s", err, output)
	}
	return binary, nil
}

func moduleRoot(ctx context.Context) (_ string, err error) {
	defer Catch(&err)
	output := Must(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}").Output())
	path, root, ok := bytes.Cut(bytes.TrimSpace(output), []byte(" "))
	if !ok || string(path) != "mlsd" {
		return "", errors.New("the working directory is in another module")
	}
	return string(root), nil
}

// FastTransport keeps its connections open.
func FastTransport() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
}

// Unrepeated is a transport that sends each request once. http.Transport repeats a query whose
// connection breaks. Then the sender does not know of an effect of the first request, such as the
// lease of a Welcome.
type Unrepeated struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (t Unrepeated) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body == nil || req.Body == http.NoBody {
		req = req.Clone(req.Context())
		req.Body = io.NopCloser(strings.NewReader("")) // a request without GetBody cannot be sent again
	}
	return t.Transport.RoundTrip(req)
}
