package clientsim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// fleet is two servers on one PostgreSQL, which belongs to neither: each of the three can be killed or restarted alone.
type fleet struct {
	pg      *Postmaster
	nodes   []*Proc
	clients []*Client // of the nodes, in their order
}

// withFleet plays a story on a fleet, for which the world's own server lends its database.
func (w *World) withFleet(ctx context.Context, story func(*fleet) error) (err error) {
	w.closeIdle()
	pg, err := w.Server.Detach(ctx)
	if err != nil {
		return err
	}
	f := &fleet{pg: pg}
	defer func() {
		if err != nil {
			for i, node := range f.nodes {
				w.Note("node %d: %s", i+1, node.log)
			}
		}
		for _, c := range f.clients {
			c.http.CloseIdleConnections()
		}
		for _, node := range f.nodes {
			err = errors.Join(err, node.Stop())
		}
		err = errors.Join(err, pg.Stop(), w.Server.Start(context.WithoutCancel(ctx), nil))
	}()
	if err := pg.Start(ctx); err != nil {
		return err
	}
	for i := range 2 {
		node := w.Server.sharing(pg.URL(), fmt.Sprintf("-node-%d", i+1))
		if err := node.Start(ctx, nil); err != nil {
			return err
		}
		f.nodes = append(f.nodes, node)
		f.clients = append(f.clients, NewClient(node.URL(), w.net.audience, fastTransport(), w.Stats))
	}
	return story(f)
}

// fastTransport keeps its connections.
func fastTransport() *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
}

// do sends a call by the retry rule, to another node each time.
func (f *fleet) do(ctx context.Context, rng *rand.Rand, who *Account, call Call) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	node, backoff := rng.IntN(len(f.clients)), firstBackoff
	for {
		answer, err := f.clients[node].Once(ctx, who, call)
		wait, again := retryAfter(err, backoff)
		if !again {
			return answer, err
		}
		if ctx.Err() != nil {
			return Answer{}, errors.Join(err, ctx.Err())
		}
		f.clients[node].stats.Retried.Add(1)
		sleep(ctx, wait)
		backoff = min(2*backoff, maxBackoff)
		node = (node + 1) % len(f.clients)
	}
}

// leader waits until one node, and no other, is the one that sequences events.
func (f *fleet) leader(ctx context.Context) (leader *Proc, err error) {
	var last error
	err = until(ctx, stopLimit, func() (bool, error) {
		leader, last = nil, nil
		for _, node := range f.nodes {
			leads, err := node.leads(ctx)
			if err != nil {
				last = err
				return false, nil
			}
			if leads && leader != nil {
				return false, nil // the one does not know yet that it was replaced
			}
			if leads {
				leader = node
			}
		}
		return leader != nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("no node says that it leads: %w", errors.Join(err, last))
	}
	return leader, nil
}

// audience is subscribers that listen at the same time.
type audience struct {
	all   []*Subscriber
	tally streamTally

	seed   uint64
	awake  chan struct{}   // closed when nobody is to be slow any more
	ctx    context.Context // of their listening: it ends when they are told to stop
	cancel context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex // guards errs
	errs   []error
}

// newAudience returns one that listens until it is told to stop, or ctx ends.
func newAudience(ctx context.Context, seed uint64) *audience {
	a := &audience{seed: seed, awake: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// add makes a subscriber.
func (a *audience) add(name string, account *Account, nodes []*Client, devices ...string) *Subscriber {
	s := &Subscriber{
		Name: name, Account: account, Vigil: NewVigil(name, account.DID, devices...), Nodes: nodes,
		rng: rand.New(rand.NewPCG(a.seed, uint64(len(a.all)))), tally: &a.tally, ready: make(chan struct{}), awake: a.awake,
	}
	a.all = append(a.all, s)
	return s
}

// listen starts some of them, and waits until each has a connection.
func (a *audience) listen(some ...*Subscriber) error {
	failed := make(chan struct{}, len(some))
	for _, s := range some {
		a.done.Go(func() {
			if err := s.Listen(a.ctx); err != nil {
				a.mu.Lock()
				a.errs = append(a.errs, err)
				a.mu.Unlock()
				failed <- struct{}{}
			}
		})
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for _, s := range some {
		select {
		case <-s.ready:
		case <-failed:
			return a.err()
		case <-timer.C:
			return fmt.Errorf("%s: no stream within %s", s.Name, patience)
		case <-a.ctx.Done():
			return a.ctx.Err()
		}
	}
	return nil
}

func (a *audience) err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Join(a.errs...)
}

// stop ends all and returns what none of them could go on after.
func (a *audience) stop() error {
	a.cancel()
	a.done.Wait()
	return a.err()
}

// missing counts what was not told yet to any of them.
func (a *audience) missing(chronicle *Chronicle) (n int64) {
	for _, s := range a.all {
		n += s.Vigil.Missing(chronicle)
	}
	return n
}

// caughtUp waits until everybody has been told everything, within a bound, and then judges them.
func (w *World) caughtUp(ctx context.Context, c *audience, chronicle *Chronicle, limit time.Duration) error {
	close(c.awake)
	err := until(ctx, limit, func() (bool, error) {
		if err := c.err(); err != nil {
			return false, err
		}
		return c.missing(chronicle) == 0, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		w.Broken("%d events were not told within %s", c.missing(chronicle), limit)
		err = nil
	}
	sleep(ctx, lull) // for what comes once too often
	err = errors.Join(err, c.stop())
	for _, s := range c.all {
		w.Report(s.Vigil.Judge(chronicle)...)
		events, _ := s.Vigil.Told()
		w.Stats.Delivered.Add(events)
	}
	return err
}

// lull is how long nothing may come when everything has been told.
const lull = 200 * time.Millisecond

// account makes a registered account whose tokens are cheap to sign and to verify.
func (w *World) cheapAccount() (*Account, error) {
	const p256 = 1
	a, err := NewAccount(p256)
	if err != nil {
		return nil, err
	}
	return a, w.dir.Register(a)
}

func didsOf(accounts []*Account) []syntax.DID {
	out := make([]syntax.DID, len(accounts))
	for i, a := range accounts {
		out[i] = a.DID
	}
	return out
}
