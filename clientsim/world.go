package clientsim

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
)

// World is what one scenario plays in: accounts and phones of its own, on the
// run's server and directory, with a network whose faults it controls.
type World struct {
	Options
	Faults *Faulty
	Stats  *Stats
	// Server is nil where the server is not ours to kill.
	Server *Proc

	rng    *rand.Rand // for the scenario's own goroutine only
	suite  Suite
	net    *Client
	ledger *Ledger
	model  *Model
	dir    *Directory
	phones []*Phone
	tell   func(string) // progress

	closeIdle func() // closes connections without a request

	mu    sync.Mutex // guards what follows
	found []Violation
	notes []string
}

// Options size a scenario.
type Options struct {
	Seed     uint64
	Clients  int // phones in the long conversation
	Messages int // messages in it
	Epochs   int // commits in contended-commits
	Members  int // members in big-group
	Claims   int // claims in claims-two-servers

	Writers     int           // who write at once in live
	Convos      int           // in live
	Subscribers int           // in live
	For         time.Duration // how long they write in live
	Rate        int           // messages a second in live; 0: as many as go
	Calm        bool          // nothing goes wrong in live, and no roster changes
	Idle        int           // subscribers without a convo in live-idle
	Audience    int           // subscribers of one message in live-idle
}

// target is the server that a run talks to.
type target struct {
	base      string
	audience  string
	transport http.RoundTripper
	server    *Proc
	dir       *Directory
}

func newWorld(to target, o Options, salt uint64, tell func(string)) *World {
	w := &World{
		Options: o, Stats: &Stats{}, Server: to.server, dir: to.dir, model: NewModel(), tell: tell,
		rng: rand.New(rand.NewPCG(o.Seed, salt)), closeIdle: func() {},
	}
	if idle, ok := to.transport.(interface{ CloseIdleConnections() }); ok {
		w.closeIdle = idle.CloseIdleConnections
	}
	w.suite = []Suite{SuiteX25519, SuiteP256, SuiteChaCha20}[w.rng.IntN(3)]
	w.ledger = NewLedger(to.transport)
	w.Faults = NewFaulty(w.ledger)
	w.net = NewClient(to.base, to.audience, w.Faults, w.Stats)
	return w
}

// Report notes a broken promise.
func (w *World) Report(v ...Violation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = append(w.found, v...)
}

// Broken notes a broken promise in words.
func (w *World) Broken(format string, args ...any) {
	w.Report(Violation{Kind: Broken, What: fmt.Sprintf(format, args...)})
}

// Note keeps a line for the report.
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

// Found returns what was noted.
func (w *World) Found() []Violation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.found)
}

// Account makes and registers an account.
func (w *World) Account() (*Account, error) {
	a, err := NewAccount(w.rng.IntN(2))
	if err != nil {
		return nil, err
	}
	return a, w.dir.Register(a)
}

// Phone makes a phone with an account of its own.
func (w *World) Phone(name string) (*Phone, error) {
	account, err := w.Account()
	if err != nil {
		return nil, err
	}
	return w.newPhone(name, account)
}

// SecondDevice makes another phone for the account of p.
func (w *World) SecondDevice(p *Phone, name string) (*Phone, error) {
	second, err := w.newPhone(name, p.Account)
	if err != nil {
		return nil, err
	}
	p.shared, second.shared = true, true
	return second, nil
}

// Retire takes a phone out of the world: a device that was removed from its
// groups, and of which nothing is expected any more.
func (w *World) Retire(p *Phone) {
	w.phones = slices.DeleteFunc(w.phones, func(q *Phone) bool { return p == q })
}

// newPhone makes a phone whose commits are, by the seed, PublicMessages or
// PrivateMessages.
func (w *World) newPhone(name string, account *Account) (*Phone, error) {
	p, err := newPhone(name, account, w.suite, w.net, w.model)
	if err != nil {
		return nil, err
	}
	p.device.HideHandshakes(w.rng.IntN(2) == 0)
	w.phones = append(w.phones, p)
	return p, p.save(nil)
}

// Phones makes n phones, each with two published KeyPackages.
func (w *World) Phones(ctx context.Context, n int) ([]*Phone, error) {
	var phones []*Phone
	for range n {
		p, err := w.Phone(fmt.Sprintf("phone-%d", len(w.phones)))
		if err != nil {
			return nil, err
		}
		if err := p.Publish(ctx, 2); err != nil {
			return nil, err
		}
		phones = append(phones, p)
	}
	return phones, nil
}

// Convo makes n phones and a convo of all of them; the first has created it.
func (w *World) Convo(ctx context.Context, n int) ([]*Phone, string, error) {
	phones, err := w.Phones(ctx, n)
	if err != nil {
		return nil, "", err
	}
	convo, err := phones[0].Create(ctx, dids(phones[1:])...)
	if err != nil {
		return nil, "", err
	}
	for _, p := range phones[1:] {
		if err := p.Join(ctx, convo); err != nil {
			return nil, "", err
		}
	}
	return phones, convo, nil
}

func dids(phones []*Phone) []syntax.DID {
	out := make([]syntax.DID, len(phones))
	for i, p := range phones {
		out[i] = p.Account.DID
	}
	return out
}

// SyncAll lets every phone read the convo.
func (w *World) SyncAll(ctx context.Context, convo string, phones ...*Phone) error {
	var errs []error
	for _, p := range phones {
		errs = append(errs, p.Sync(ctx, convo))
	}
	return errors.Join(errs...)
}

// Script installs a plan of named accidents, which must all happen before
// the returned function is called.
func (w *World) Script(s *Script) (done func()) {
	w.Faults.Use(s)
	return func() {
		w.Faults.Use(nil)
		if n := s.Left(); n > 0 {
			w.Broken("the scenario itself: %d of its faults never happened", n)
		}
	}
}

// Restart brings the server up again, after a kill or with other settings.
func (w *World) Restart(ctx context.Context, settings map[string]string) error {
	// A connection that was opened and never used holds an orderly shutdown up.
	w.closeIdle()
	if err := w.Server.Stop(); err != nil {
		return err
	}
	return w.Server.Start(ctx, settings)
}

// until polls a condition that nothing can signal over HTTP.
func until(ctx context.Context, limit time.Duration, cond func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := cond()
		if err != nil || ok {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, ctx.Err())
		}
	}
}
