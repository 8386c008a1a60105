package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
)

// instance is a node with a database of its own. A reset replaces it: what the node remembers is
// gone as surely as what the database holds.
type instance struct {
	database string
	run      *lifecycle
	requests sync.WaitGroup // under way in this instance
}

// Shutdown waits for the requests that are under way. instance is the door of its node: the
// connections belong to the server, and survive.
func (i *instance) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		i.requests.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close implements door.
func (i *instance) Close() error { return nil }

// instances serve requests by one instance at a time. One more waits to take its place, so that a
// reset takes no longer than a moment.
type instances struct {
	cfg       Config
	listen    net.Listener // only its address is used
	log       *slog.Logger
	databases *devDatabases

	mu      sync.RWMutex // guards current
	current *instance

	ready   chan built // the next instance
	stop    func()     // ends the making of instances
	closing sync.WaitGroup
	slots   chan struct{} // taken by those that are being closed
}

// built is an instance, or the reason why there is none.
type built struct {
	*instance
	err error
}

// mostClosing is how many former instances are being closed at a time. A reset waits if there are
// more.
const mostClosing = 4

// startInstances starts PostgreSQL and the first instance.
func startInstances(ctx context.Context, cfg Config, listen net.Listener, log *slog.Logger) (_ *instances, err error) {
	all := &instances{cfg: cfg, listen: listen, log: log, ready: make(chan built), slots: make(chan struct{}, mostClosing)}
	if all.databases, err = startDevDatabases(ctx, log); err != nil {
		return nil, err
	}
	if all.current, err = all.build(ctx); err != nil {
		return nil, errors.Join(err, all.databases.close(ctx))
	}
	all.stop = inBackground(ctx, all.keepBuilding)
	return all, nil
}

// build makes a database and starts a node on it.
func (all *instances) build(ctx context.Context) (_ *instance, err error) {
	name, err := all.databases.create(ctx)
	if err != nil {
		return nil, err
	}
	i := &instance{database: name}
	i.run = &lifecycle{
		cfg: all.cfg, log: all.log, databaseURL: all.databases.url(name), publicListen: all.listen, public: i, admin: &http.Server{},
	}
	for _, start := range []func(context.Context) error{
		i.run.openPools, i.run.assemble, i.run.loadAccounts, i.run.checkSchema, i.run.startWorkers, i.run.startPresence,
	} {
		if err := start(ctx); err != nil {
			return nil, errors.Join(err, i.run.close(ctx), all.databases.drop(context.WithoutCancel(ctx), name))
		}
	}
	i.run.node.ready.Store(true)
	return i, nil
}

// keepBuilding makes the instances that resets take.
func (all *instances) keepBuilding(ctx context.Context) {
	for ctx.Err() == nil {
		next, err := all.build(ctx)
		select {
		case all.ready <- built{next, err}:
		case <-ctx.Done():
			if err == nil {
				all.end(ctx, next)
			}
		}
	}
}

// end closes an instance that takes no more requests.
func (all *instances) end(ctx context.Context, i *instance) {
	ctx = context.WithoutCancel(ctx)
	err := errors.Join(i.run.shutDown(ctx), i.run.close(ctx), all.databases.drop(ctx, i.database))
	if err != nil {
		all.log.Warn("a former instance was not closed in order", "error", err)
	}
}

// ServeHTTP implements http.Handler.
func (all *instances) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	all.mu.RLock()
	i := all.current
	i.requests.Add(1)
	all.mu.RUnlock()
	defer i.requests.Done()
	i.run.node.api.ServeHTTP(w, r)
}

// reset replaces the instance. The former one finishes its requests in the background, and ends its
// streams.
func (all *instances) reset(ctx context.Context) error {
	select {
	case all.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	var next built
	select {
	case next = <-all.ready:
	case <-ctx.Done():
		next.err = ctx.Err()
	}
	if next.err != nil {
		<-all.slots
		return next.err
	}
	all.mu.Lock()
	former := all.current
	all.current = next.instance
	all.mu.Unlock()
	all.closing.Go(func() {
		all.end(ctx, former)
		<-all.slots
	})
	return nil
}

// close ends all instances, stops PostgreSQL and removes its directory. No request is under way, and
// no reset.
func (all *instances) close(ctx context.Context) error {
	all.stop()
	all.closing.Wait()
	all.end(ctx, all.current)
	return all.databases.close(context.WithoutCancel(ctx))
}
