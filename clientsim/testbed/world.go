// Package testbed is what scenarios run in: servers and PostgreSQL as child processes, faults on
// the network, a PLC directory, and World, which has the accounts, phones and final checks of one
// scenario.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/client"
	"mlsd/clientsim/history"
	"mlsd/clientsim/mlsclient"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// World is the environment of one scenario: its own accounts and phones, the run's server and
// directory, and a network with faults.
type World struct {
	Options
	Faults *FaultyTransport
	Stats  *xrpc.Stats
	// Server is nil if the server is not ours to kill.
	Server *Proc

	RNG      *rand.Rand // for the scenario's own goroutine only
	Suite    mlsclient.Suite
	Net      *xrpc.Client
	ledger   *history.Ledger
	Model    *history.Model
	dir      *Directory
	phones   []*client.Phone
	Progress func(string) // gets lines that say what is happening

	CloseIdle func() // closes connections without a request

	mu    sync.Mutex   // guards the fields below
	made  []syntax.DID // accounts of this world
	found []history.Violation
	notes []string
	atEnd []func() error
}

// Options say how large the scenarios are.
type Options struct {
	Seed     uint64
	Clients  int // phones in the long conversation
	Messages int // messages in the long conversation
	Epochs   int // commits in contended-commits
	Members  int // devices in large-library-group
	Claims   int // claims in claims-two-servers
	Attacks  int // groups that are attacked in bad-proposals

	Writers     int           // accounts that write at once in live
	Convos      int           // convos in live
	Subscribers int           // subscribers in live
	For         time.Duration // how long accounts write in live, and people act in network
	Rate        int           // messages a second in live, 0 means no limit; steps a second in network, 0 means the usual
	Calm        bool          // nothing goes wrong in live, and no roster changes

	Uploads int // uploads in attachments
	People  int // people in network
	// Cores are the numbers of cores of each database and of each server in network-growth, or nil.
	Cores []float64

	Agents string // folder with agents of other MLS libraries, or ""
	// Upgrade are the binaries that rolling-upgrade runs in the server's place, one after the other.
	Upgrade []string
	// Failovers is how often the primary fails in failover and failover-async, and how often each
	// fault happens in patroni.
	Failovers int
	// Patroni is a folder with the files of deploy/patroni, or "". Faulty are the names of the faults
	// to play. If Faulty is empty, all faults are played.
	Patroni string
	Faulty  []string
}

// Target is the server that a run talks to.
type Target struct {
	Base      string
	Audience  string
	Transport http.RoundTripper
	Server    *Proc
	Dir       *Directory
}

// NewWorld makes the world of a scenario. Its random numbers follow from the seed and salt.
// progress gets lines that say what is happening.
func NewWorld(to Target, o Options, salt uint64, progress func(string)) *World {
	w := &World{
		Options: o, Stats: &xrpc.Stats{}, Server: to.Server, dir: to.Dir, Model: history.NewModel(), Progress: progress,
		RNG: rand.New(rand.NewPCG(o.Seed, salt)), CloseIdle: func() {},
	}
	if idle, ok := to.Transport.(interface{ CloseIdleConnections() }); ok {
		w.CloseIdle = idle.CloseIdleConnections
	}
	w.Suite = []mlsclient.Suite{mlsclient.SuiteX25519, mlsclient.SuiteP256, mlsclient.SuiteChaCha20}[w.RNG.IntN(3)]
	w.ledger = history.NewLedger(to.Transport)
	w.Faults = NewFaultyTransport(w.ledger)
	w.Net = xrpc.NewClient(to.Base, to.Audience, w.Faults, w.Stats)
	return w
}

// Report adds broken promises to the report.
func (w *World) Report(v ...history.Violation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = append(w.found, v...)
}

// Broken adds a broken promise to the report, as text.
func (w *World) Broken(format string, args ...any) {
	w.Report(history.Violation{Kind: history.Broken, What: fmt.Sprintf(format, args...)})
}

// Attempt runs steps. A failure is a broken promise.
func (w *World) Attempt(steps func()) {
	if err := Attempt(steps); err != nil {
		w.Broken("%v", err)
	}
}

// Note adds a line to the report.
func (w *World) Note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, fmt.Sprintf(format, args...))
}

// Notes returns the lines for the report.
func (w *World) Notes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.notes)
}

// AtEnd makes Close call f, after the final checks.
func (w *World) AtEnd(f func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.atEnd = append(w.atEnd, f)
}

// Close calls the functions of AtEnd, the last one first.
func (w *World) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, f := range slices.Backward(w.atEnd) {
		errs = append(errs, f())
	}
	w.atEnd = nil
	return errors.Join(errs...)
}

// Found returns the broken promises so far.
func (w *World) Found() []history.Violation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.found)
}

// Account makes and registers an account.
func (w *World) Account() (_ *xrpc.Account, err error) {
	defer Catch(&err)
	a := Must(xrpc.NewAccount(w.RNG.IntN(2)))
	return a, w.register(a)
}

func (w *World) register(a *xrpc.Account) error {
	w.mu.Lock()
	w.made = append(w.made, a.DID)
	w.mu.Unlock()
	return w.dir.Register(a)
}

// Accounts returns the accounts that were made in this world.
func (w *World) Accounts() []syntax.DID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.made)
}

// Phone makes a phone with an account of its own.
func (w *World) Phone(name string) (*client.Phone, error) { return w.PhoneOf(name, mlsclient.Go()) }

// PhoneOf makes a phone that uses an MLS library.
func (w *World) PhoneOf(name string, library mlsclient.Library) (_ *client.Phone, err error) {
	defer Catch(&err)
	account := Must(w.Account())
	return w.newPhone(name, account, library)
}

// SecondDevice makes another phone for the account of p.
func (w *World) SecondDevice(p *client.Phone, name string) (*client.Phone, error) {
	return w.SecondDeviceOf(p, name, mlsclient.Go())
}

// SecondDeviceOf makes another phone for the account of p. The phone uses the given MLS library.
func (w *World) SecondDeviceOf(p *client.Phone, name string, library mlsclient.Library) (_ *client.Phone, err error) {
	defer Catch(&err)
	second := Must(w.newPhone(name, p.Account, library))
	p.HasSiblings, second.HasSiblings = true, true
	return second, nil
}

// Retire takes a phone out of the world. It was removed from its groups, and the checks ignore it.
func (w *World) Retire(p *client.Phone) {
	w.phones = slices.DeleteFunc(w.phones, func(q *client.Phone) bool { return p == q })
}

// newPhone makes a phone. The seed decides whether its commits are PublicMessages or
// PrivateMessages.
func (w *World) newPhone(name string, account *xrpc.Account, library mlsclient.Library) (_ *client.Phone, err error) {
	defer Catch(&err)
	device := Must(library.NewDevice(account.DID.String(), w.Suite))
	p := Must(client.NewPhoneWith(name, account, w.Suite, device, w.Net, w.Model))
	p.Verifies = true
	p.Device.HideHandshakes(w.RNG.IntN(2) == 0)
	w.phones = append(w.phones, p)
	return p, p.Save(nil)
}

// Phones makes n phones, each with two published KeyPackages.
func (w *World) Phones(ctx context.Context, n int) (_ []*client.Phone, err error) {
	defer Catch(&err)
	var phones []*client.Phone
	for range n {
		p := Must(w.Phone(fmt.Sprintf("phone-%d", len(w.phones))))
		Check(p.Publish(ctx, 2))
		phones = append(phones, p)
	}
	return phones, nil
}

// Convo makes n phones and a convo of all of them. The first phone is the creator.
func (w *World) Convo(ctx context.Context, n int) (_ []*client.Phone, _ string, err error) {
	defer Catch(&err)
	phones := Must(w.Phones(ctx, n))
	convo := Must(phones[0].Create(ctx, DIDs(phones[1:])...))
	for _, p := range phones[1:] {
		Check(p.Join(ctx, convo))
	}
	return phones, convo, nil
}

// DIDs returns the DIDs of phones.
func DIDs(phones []*client.Phone) []syntax.DID {
	out := make([]syntax.DID, len(phones))
	for i, p := range phones {
		out[i] = p.Account.DID
	}
	return out
}

// SyncAll makes every phone read the convo.
func (w *World) SyncAll(ctx context.Context, convo string, phones ...*client.Phone) error {
	var errs []error
	for _, p := range phones {
		errs = append(errs, p.Sync(ctx, convo))
	}
	return errors.Join(errs...)
}

// Restart starts the server again, after a kill or with other settings.
func (w *World) Restart(ctx context.Context, settings map[string]string) error {
	// An unused connection would delay an orderly shutdown.
	w.CloseIdle()
	if err := w.Server.Stop(); err != nil {
		return err
	}
	return w.Server.Start(ctx, settings)
}
