package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/urfave/cli/v3"

	"mlsd/internal/devserver"
)

// devCommand returns the command "dev".
func devCommand(stdout, stderr io.Writer) *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "serve for development and tests: with a database that is gone at the end, made-up accounts, and faults (docs/clients/DEV.md)",
		Flags: []cli.Flag{&cli.BoolFlag{
			Name:  "expose",
			Usage: "serve others than this machine, who can then sign as any account and erase everything (in a container)",
		}},
		Action: withConfig(0, func(ctx context.Context, cfg Config, cmd *cli.Command) error {
			if err := checkDevelopment(cmd); err != nil {
				return err
			}
			return dev(ctx, cfg, cmd.Bool("expose"), stdout, stderr)
		}),
	}
}

// productionSettings are those that "dev" refuses: a server that has them is a real one, or they
// have no effect. The value says why.
var productionSettings = map[string]string{
	"MLSD_DATABASE_URL":          "it has a database of its own, and erases it",
	"MLSD_DATABASE_URL_FILE":     "it has a database of its own, and erases it",
	"MLSD_WAIT_FOR_DATABASE":     "it has a database of its own",
	"MLSD_DATA_DIR":              "its database is gone at the end",
	"MLSD_WAL_ARCHIVE":           "its database is gone at the end",
	"MLSD_ATTACHMENTS":           "its attachments are gone at the end",
	"MLSD_ATTACHMENTS_DIR":       "its attachments are gone at the end",
	"MLSD_S3_ENDPOINT":           "its attachments are gone at the end",
	"MLSD_S3_BUCKET":             "its attachments are gone at the end",
	"MLSD_S3_REGION":             "its attachments are gone at the end",
	"MLSD_S3_ACCESS_KEY":         "its attachments are gone at the end",
	"MLSD_S3_SECRET_KEY":         "its attachments are gone at the end",
	"MLSD_S3_SECRET_KEY_FILE":    "its attachments are gone at the end",
	"MLSD_PLC_URL":               "it is the PLC directory itself",
	"MLSD_ADMIT":                 "its accounts are made up",
	"MLSD_ADMIT_FILE":            "its accounts are made up",
	"MLSD_RELAY_URL":             "its accounts are made up",
	"MLSD_RELAY_KIND":            "its accounts are made up",
	"MLSD_TRUSTED_PROXIES":       "no proxy stands before it",
	"MLSD_ADMIN_URL":             "it has no admin listener",
	"MLSD_ADMIN_HOSTS":           "it has no admin listener",
	"MLSD_ADMIN_TOKEN":           "it has no admin listener",
	"MLSD_ADMIN_TOKEN_FILE":      "it has no admin listener",
	"MLSD_ADMIN_READ_TOKEN":      "it has no admin listener",
	"MLSD_ADMIN_READ_TOKEN_FILE": "it has no admin listener",
	"MLSD_REPORT_KEY":            "it has a key of its own",
	"MLSD_REPORT_KEY_FILE":       "it has a key of its own",
	"MLSD_FAILPOINTS":            "it has no admin listener",
}

// checkDevelopment fails if a setting says that this is to be a real server.
func checkDevelopment(cmd *cli.Command) error {
	all, err := choose(cmd)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range settings {
		value := all[s.env].value
		why, production := productionSettings[s.env]
		switch {
		case value == s.value:
			continue
		case s.env == "MLSD_SERVICE_DID" && !strings.HasPrefix(value, "did:web:localhost%3A"):
			why, production = "a host's name is a real service's", true
		case s.env == "MLSD_PUBLIC_URL" && !strings.HasPrefix(value, "http://"):
			why, production = "https is a real service's", true
		case s.env == "MLSD_APNS_KEY_FILE" && all["MLSD_APNS_HOST"].value == "":
			why, production = "without MLSD_APNS_HOST, it would call real devices", true
		}
		if production {
			errs = append(errs, fmt.Errorf("mlsd dev is not for real services: %s is set (%s)", s.env, why))
		}
	}
	return errors.Join(errs...)
}

// checkExposure fails if others than this machine could reach addr and nobody has said that they
// may.
func checkExposure(addr string, expose bool) error {
	at, err := net.ResolveTCPAddr("tcp", addr)
	switch {
	case err != nil:
		return fmt.Errorf("--listen: %w", err)
	case at.IP.IsLoopback():
		return nil
	case !expose:
		return fmt.Errorf("--listen %s is not only on loopback: anyone who reaches mlsd dev can sign as any of its accounts and erase everything; pass --expose if that is meant (in a container)", addr)
	case at.IP != nil && !at.IP.IsUnspecified():
		return fmt.Errorf("--listen %s: listen on loopback or on every address (0.0.0.0): the server asks its own directory on loopback", addr)
	}
	return nil
}

// dev runs the server for development until ctx ends. Its database is deleted at the end.
func dev(ctx context.Context, cfg Config, expose bool, stdout, stderr io.Writer) (err error) {
	if err := checkExposure(cfg.Listen, expose); err != nil {
		return err
	}
	log := logger(cfg, stderr)
	if expose {
		log.Warn("anyone who reaches this address can sign as any account and erase everything", "listen", cfg.Listen)
	}
	tuneMemory(log)
	listener, err := listen(listenFlag, cfg.Listen)
	if err != nil {
		return err
	}
	defer closeQuietly(listener, log)
	if err := cfg.forDevelopment(listener.Addr()); err != nil {
		return err
	}
	nodes, err := startInstances(ctx, cfg, listener, log)
	if err != nil {
		return unlessInterrupted(ctx, err, log)
	}
	defer func() { err = errors.Join(err, nodes.close(ctx)) }()
	server := httpServer(devserver.New(devserver.Config{
		URL: cfg.PLCURL, ServiceDID: cfg.ServiceDID, Version: version(), Service: nodes, Reset: nodes.reset, Log: log,
	}), log)
	server.ConnContext = devserver.ConnContext
	return serveDev(ctx, server, listener, nodes, stdout, log)
}

// forDevelopment completes the configuration of a server that listens on addr.
func (c *Config) forDevelopment(addr net.Addr) error {
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return fmt.Errorf("read the listener's port: %w", err)
	}
	host := "127.0.0.1"
	if at, ok := addr.(*net.TCPAddr); ok && at.IP.IsLoopback() {
		host = at.IP.String()
	}
	c.PLCURL = "http://" + net.JoinHostPort(host, port)
	c.AllowLoopback = true // webhooks of the app under test
	c.KeptUnasked = false
	c.ReportKey = devReportKey
	return c.complete(addr)
}

// serveDev serves until ctx ends.
func serveDev(ctx context.Context, server *http.Server, listen net.Listener, nodes *instances, stdout io.Writer, log *slog.Logger) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listen) }()
	if _, err := fmt.Fprintf(stdout, "mlsd dev on http://%s\n", listen.Addr()); err != nil {
		return errors.Join(fmt.Errorf("print that the server is ready: %w", err), server.Close())
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	case err = <-nodes.failed:
		err = fmt.Errorf("make an empty state: %w", err)
	case <-nodes.databases.pg.Done():
		err = errors.New("the private PostgreSQL has ended")
	}
	log.Info("shutting down")
	return errors.Join(err, server.Close())
}
