package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"mlsd/clientsim/history"
	"mlsd/clientsim/xrpc"
)

// Subscribers is a group of subscribers that listen at the same time.
type Subscribers struct {
	All    []*Subscriber
	Counts StreamCounts

	seed        uint64
	StopPausing chan struct{}   // closed to make all read without pauses
	ctx         context.Context // the subscribers listen until it ends; Stop ends it
	cancel      context.CancelFunc
	done        sync.WaitGroup
	mu          sync.Mutex // guards errs
	errs        []error
}

// NewSubscribers returns an empty group. Its subscribers listen until Stop is called or ctx ends.
func NewSubscribers(ctx context.Context, seed uint64) *Subscribers {
	a := &Subscribers{seed: seed, StopPausing: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// Add adds a subscriber to the group.
func (a *Subscribers) Add(name string, account *xrpc.Account, nodes []*xrpc.Client, devices ...string) *Subscriber {
	s := &Subscriber{
		Name: name, Account: account, Observer: history.NewObserver(name, account.DID, devices...), Nodes: nodes,
		rng: rand.New(rand.NewPCG(a.seed, uint64(len(a.All)))), counts: &a.Counts, ready: make(chan struct{}),
		stopPausing: a.StopPausing,
	}
	a.All = append(a.All, s)
	return s
}

// Listen starts the given subscribers, and returns when each has a connection.
func (a *Subscribers) Listen(some ...*Subscriber) error {
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
	timer := time.NewTimer(xrpc.CallTimeout)
	defer timer.Stop()
	for _, s := range some {
		select {
		case <-s.ready:
		case <-failed:
			return a.Err()
		case <-timer.C:
			return fmt.Errorf("%s: no stream within %s", s.Name, xrpc.CallTimeout)
		case <-a.ctx.Done():
			return a.ctx.Err()
		}
	}
	return nil
}

// Err returns the errors that made subscribers end early.
func (a *Subscribers) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Join(a.errs...)
}

// Stop ends all subscribers, and returns the errors that made some end early.
func (a *Subscribers) Stop() error {
	a.cancel()
	a.done.Wait()
	return a.Err()
}

// Missing counts the events that have not arrived yet, over all subscribers.
func (a *Subscribers) Missing(want *history.History) (n int64) {
	for _, s := range a.All {
		n += s.Observer.Missing(want)
	}
	return n
}
