package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	. "mlsd/clientsim/steps"
	"mlsd/node"
)

// instance is a node with its own database. A reset replaces the instance, so the state in the
// node's memory is lost together with the database.
type instance struct {
	*node.Node
	database string
	requests sync.WaitGroup // running in this instance
}

// drain waits for the running requests. The connections belong to the server, and stay open.
func (i *instance) drain(ctx context.Context) error {
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

// instances serve requests with one instance at a time. Other instances are ready to replace it, so
// that a reset is quick.
type instances struct {
	cfg       node.Config
	addr      net.Addr // address of the server
	log       *slog.Logger
	databases *databases

	mu      sync.RWMutex // guards current
	current *instance

	resetting sync.Mutex     // held during a reset, and for ever by close
	ready     chan *instance // instances that are ready
	former    chan *instance // replaced instances, whose databases will be used again
	failed    chan error     // why there will be no more instances
	stop      func()         // ends keepBuilding
	building  sync.WaitGroup // done when keepBuilding has ended
}

// spares is how many instances are ready, or are being closed.
const spares = 2

// startInstances starts the first instance of a service.
func startInstances(
	ctx context.Context, cfg node.Config, addr net.Addr, databases *databases, log *slog.Logger,
) (_ *instances, err error) {
	all := &instances{
		cfg: cfg, addr: addr, databases: databases, log: log,
		ready: make(chan *instance, spares), former: make(chan *instance, spares), failed: make(chan error, 1),
	}
	if all.current, err = all.build(ctx, ""); err != nil {
		return nil, err
	}
	ctx, all.stop = context.WithCancel(context.WithoutCancel(ctx))
	all.building.Go(func() { all.keepBuilding(ctx) })
	return all, nil
}

// build starts a node on an empty database: the given database, or a new database if none is given.
func (all *instances) build(ctx context.Context, database string) (_ *instance, err error) {
	defer Catch(&err)
	if database == "" {
		database = Must(all.databases.create(ctx))
	} else {
		Check(all.databases.empty(ctx, database))
	}
	// A store belongs to one database. The attachments of a replaced instance are removed with its
	// rows.
	cfg := all.cfg
	cfg.Attachments.Dir = filepath.Join(all.databases.dir, "attachments", database)
	Check(os.RemoveAll(cfg.Attachments.Dir))
	n, err := node.Start(ctx, cfg, all.databases.url(database), all.addr, nil, all.log)
	return &instance{Node: n, database: database}, err
}

// keepBuilding builds instances for resets, and ends the instances that they replace.
func (all *instances) keepBuilding(ctx context.Context) {
	for n := 0; ; n++ {
		database := "" // the first instances get new databases
		if n >= spares {
			select {
			case former := <-all.former:
				all.end(ctx, former)
				database = former.database
			case <-ctx.Done():
				return
			}
		}
		next, err := all.build(ctx, database)
		if err != nil {
			if ctx.Err() == nil {
				all.failed <- err
			}
			return
		}
		all.ready <- next
	}
}

// end closes an instance that accepts no more requests.
func (all *instances) end(ctx context.Context, i *instance) {
	if err := errors.Join(i.Shutdown(ctx, i.drain), i.Close(ctx)); err != nil {
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
	i.Node.ServeHTTP(w, r)
}

// databaseURL returns the URL of the current instance's database.
func (all *instances) databaseURL() string {
	all.mu.RLock()
	defer all.mu.RUnlock()
	return all.databases.url(all.current.database)
}

// reset replaces the instance. Running requests end in the old instance, and leave no trace in the
// new one. The streams of the old instance are told to end.
func (all *instances) reset(ctx context.Context) error {
	all.resetting.Lock()
	defer all.resetting.Unlock()
	select {
	case next := <-all.ready:
		all.mu.Lock()
		former := all.current
		all.current = next
		all.mu.Unlock()
		all.former <- former
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close ends all instances. Afterwards a reset is no longer possible.
func (all *instances) close(ctx context.Context) {
	all.resetting.Lock()
	all.stop()
	all.building.Wait()
	all.end(ctx, all.current)
	for len(all.former) > 0 {
		all.end(ctx, <-all.former)
	}
	for len(all.ready) > 0 {
		all.end(ctx, <-all.ready)
	}
}
