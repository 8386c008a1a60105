package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strconv"

	"github.com/bluesky-social/indigo/atproto/syntax"

	. "mlsd/clientsim/steps"
	"mlsd/cmd/mlsd-dev/devserver"
	mlsnetwork "mlsd/features/network"
	"mlsd/features/push"
	"mlsd/internal/localpg"
	"mlsd/node"
)

// network holds the services of this process. Each service has its own address, DID and database.
// All of them share PostgreSQL, people and the directory of people.
type network struct {
	databases *databases
	services  []*service
	log       *slog.Logger
}

type service struct {
	listener net.Listener
	url      string // URL by which this process reaches the service
	cfg      node.Config
	nodes    *instances
	server   *http.Server
}

// listenAll listens on that many ports: on the address's own port and the next ones, or on free
// ports.
func listenAll(address string, services int) (listeners []net.Listener, err error) {
	defer CatchIn(&err, "--listen")
	host, port := Must2(net.SplitHostPort(address))
	first := Must(net.LookupPort("tcp", port))
	for i := range services {
		if first != 0 {
			address = net.JoinHostPort(host, strconv.Itoa(first+i))
		}
		l, err := node.Listen("listen", address)
		if err != nil {
			closeAll(listeners)
			return nil, err
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		_ = l.Close() // it may be closed already
	}
}

// startNetwork starts PostgreSQL, and a service for each listener. The first service has the
// directory.
func startNetwork(
	ctx context.Context, cfg node.Config, listeners []net.Listener, log *slog.Logger, step localpg.Step,
) (_ *network, err error) {
	all := &network{log: log}
	if all.databases, err = startDatabases(ctx, cfg.DataDir, len(listeners), log, step); err != nil {
		return nil, err
	}
	if err := Attempt(func() {
		var names []syntax.DID
		for _, l := range listeners {
			one := &service{listener: l, cfg: cfg, url: Must(urlOf(l.Addr()))}
			all.services = append(all.services, one)
			Check(forDevelopment(&one.cfg, l.Addr(), all.services[0].url))
			names = append(names, one.cfg.ServiceDID)
		}
		for i, one := range all.services {
			if one.cfg.Services.Nobody() {
				one.cfg.Services = mlsnetwork.Trusting(names...)
			}
			one.cfg.ServiceKeyFile = filepath.Join(all.databases.dir, fmt.Sprintf("service-%d.key", i+1))
			if one.cfg.VAPIDKeyFile == "" {
				one.cfg.VAPIDKeyFile = filepath.Join(all.databases.dir, fmt.Sprintf("vapid-%d.pem", i+1))
				Check(push.MakeVAPIDKey(one.cfg.VAPIDKeyFile))
			}
			one.nodes = Must(startInstances(ctx, one.cfg, one.listener.Addr(), all.databases, log))
		}
	}); err != nil {
		return nil, errors.Join(err, all.close(ctx))
	}
	return all, nil
}

// handle creates the servers. If there are several services, it prints where new people live.
func (all *network) handle(expose bool, stdout io.Writer) {
	var first *devserver.Server
	var onAccount func(devserver.Account)
	if len(all.services) > 1 {
		onAccount = func(a devserver.Account) {
			// If nobody reads the output any more, the services still run on.
			_, _ = fmt.Fprintf(stdout, "%s (%s) lives at %s\n", a.Handle, a.DID, a.DeliveryService)
		}
	}
	for _, one := range all.services {
		s := devserver.New(devserver.Config{
			URL: one.url, ServiceDID: one.cfg.ServiceDID, Version: node.Version(), Service: one.nodes,
			Database: one.nodes.databaseURL, OwnHost: ownHost(one.cfg.PublicURL, expose), Reset: all.reset, Log: all.log,
			First: first, OnAccount: onAccount,
		})
		if first == nil {
			first = s
		}
		one.server = node.HTTPServer(s, one.cfg.TrustedProxies, all.log)
		one.server.ConnContext = devserver.ConnContext
	}
}

// reset replaces the instances of all services.
func (all *network) reset(ctx context.Context) error {
	for _, one := range all.services {
		if err := one.nodes.reset(ctx); err != nil {
			return err
		}
	}
	return nil
}

// serve serves until ctx ends.
func (all *network) serve(ctx context.Context, stdout io.Writer) error {
	failed := make(chan error, 2*len(all.services))
	ready := ""
	for i, one := range all.services {
		go func() { failed <- fmt.Errorf("serve: %w", one.server.Serve(one.listener)) }()
		go func() {
			select {
			case err := <-one.nodes.failed:
				failed <- fmt.Errorf("make an empty state: %w", err)
			case <-ctx.Done():
			}
		}()
		name := "mlsd-dev"
		if i > 0 {
			name = fmt.Sprintf("service %d", i+1)
		}
		ready += fmt.Sprintf("%s on http://%s\n", name, one.listener.Addr())
	}
	if _, err := io.WriteString(stdout, ready); err != nil {
		return errors.Join(fmt.Errorf("print that the servers are ready: %w", err), all.shutdown())
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	case <-all.databases.pg.Done():
		err = errors.New("the private PostgreSQL has ended")
	}
	all.log.Info("shutting down")
	return errors.Join(err, all.shutdown())
}

func (all *network) shutdown() (err error) {
	for _, one := range all.services {
		err = errors.Join(err, one.server.Close())
	}
	return err
}

// close ends all instances, stops PostgreSQL and removes its directory.
func (all *network) close(ctx context.Context) error {
	for _, one := range all.services {
		if one.nodes != nil {
			one.nodes.close(ctx)
		}
	}
	return all.databases.close(context.WithoutCancel(ctx))
}
