// Command mlsd-dev is the delivery service for development and tests of apps. It has made-up
// accounts, devices and faults, and a database that is deleted at the end: docs/clients/DEV.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	. "mlsd/clientsim/steps"
	"mlsd/internal/terminal"
	"mlsd/node"
	"mlsd/operator"
)

func main() { node.Main("mlsd-dev", run) }

// run does what main does, with the given inputs and outputs.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	services, args := takeServices(args)
	return node.Run(ctx, &cli.Command{
		Name: "mlsd-dev",
		Usage: "mlsd for development and tests: with a database that is gone at the end, made-up accounts, and faults " +
			"(docs/clients/DEV.md)",
		Description: "With a number, --services serves a network of so many services, each on a port of its own. " +
			"People live at one of them, in turn.",
		Writer:    stdout,
		ErrWriter: stderr,
		Flags: []cli.Flag{&cli.BoolFlag{
			Name:  "expose",
			Usage: "serve others than this machine, who can then sign as any account and erase everything (in a container)",
		}},
		Action: node.WithConfig(0, func(ctx context.Context, cfg node.Config, cmd *cli.Command) (err error) {
			defer Catch(&err)
			Check(checkDevelopment(cfg, cmd))
			Check(checkServices(cfg, services))
			return dev(ctx, cfg, services, cmd.Bool("expose"), stdout, stderr)
		}),
	}, args, environ)
}

// reportKey is the public half of the operator's key. docs/clients/DEV.md has the private half.
const reportKey = "mlsd-report-public-XwUmXPp77xzZX_nHLkaVPB9tKATYAxbR3ztr7ToWoSM"

// refused lists settings that are only for real services, or have no effect here, with the reasons.
var refused = []struct{ prefix, why string }{
	{"MLSD_DATABASE_URL", "it has a database of its own, and erases it"},
	{"MLSD_READ_DATABASE_URL", "it has a database of its own"},
	{"MLSD_WAIT_FOR_DATABASE", "it has a database of its own"},
	{"MLSD_DATA_DIR", "its database is gone at the end"},
	{"MLSD_WAL_ARCHIVE", "its database is gone at the end"},
	{"MLSD_ATTACHMENTS", "its attachments are gone at the end"},
	{"MLSD_S3_", "its attachments are gone at the end"},
	{"MLSD_PLC_URL", "it is the PLC directory itself"},
	{"MLSD_ADMIT", "its accounts are made up"},
	{"MLSD_RELAY_", "its accounts are made up"},
	{"MLSD_TRUSTED_PROXIES", "no proxy stands before it"},
	{"MLSD_ADMIN_", "it has no admin listener"},
	{"MLSD_FAILPOINTS", "it has no admin listener"},
	{"MLSD_REPORT_KEY", "it has a key of its own"},
}

// checkDevelopment returns an error if a setting is for a real server.
func checkDevelopment(cfg node.Config, cmd *cli.Command) (err error) {
	defer Catch(&err)
	changed := Must(node.Changed(cmd))
	var errs []error
	refuse := func(variable, why string) {
		errs = append(errs, fmt.Errorf("mlsd-dev is not for real services: %s is set (%s)", variable, why))
	}
	for _, s := range changed {
		for _, r := range refused {
			if strings.HasPrefix(s.Variable, r.prefix) {
				refuse(s.Variable, r.why)
			}
		}
	}
	if cfg.ServiceDID != "" && !strings.HasPrefix(cfg.ServiceDID.String(), "did:web:localhost%3A") {
		refuse("MLSD_SERVICE_DID", "a host's name is a real service's")
	}
	if cfg.PublicURL != "" && !strings.HasPrefix(cfg.PublicURL, "http://") {
		refuse("MLSD_PUBLIC_URL", "https is a real service's")
	}
	if cfg.APNs.File != "" && cfg.APNsHost == "" {
		refuse("MLSD_APNS_KEY_FILE", "without MLSD_APNS_HOST, it would call real devices")
	}
	return errors.Join(errs...)
}

// maxServices bounds the services of one process. Each has three nodes: see instances.
const maxServices = 8

// takeServices removes --services N from the arguments. With any other value, the flag is a
// setting: it names the services with which this one deals.
func takeServices(args []string) (services int, rest []string) {
	services = 1
	for i := 0; i < len(args); i++ {
		name, value, joined := strings.Cut(args[i], "=")
		if name != "--services" && name != "-services" {
			rest = append(rest, args[i])
			continue
		}
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			rest = append(rest, args[i])
			continue
		}
		services = n
		if !joined {
			i++
		}
	}
	return services, rest
}

// checkServices returns an error if that many services are not possible.
func checkServices(cfg node.Config, services int) error {
	switch {
	case services < 1 || services > maxServices:
		return fmt.Errorf("--services must be from 1 to %d", maxServices)
	case services > 1 && (cfg.ServiceDID != "" || cfg.PublicURL != ""):
		return errors.New("with --services each one has a DID and an address of its own: leave --service-did and " +
			"--public-url out")
	}
	return nil
}

// checkExposure returns an error if other machines could reach addr, and expose does not allow
// that.
func checkExposure(addr string, expose bool) error {
	at, err := net.ResolveTCPAddr("tcp", addr)
	switch {
	case err != nil:
		return fmt.Errorf("--listen: %w", err)
	case at.IP.IsLoopback():
		return nil
	case !expose:
		return fmt.Errorf("--listen %s is not only on loopback: anyone who reaches mlsd-dev can sign as any of its "+
			"accounts and erase everything; pass --expose if that is meant (in a container)", addr)
	case at.IP != nil && !at.IP.IsUnspecified():
		return fmt.Errorf("--listen %s: listen on loopback or on every address (0.0.0.0): the server asks its own "+
			"directory on loopback", addr)
	}
	return nil
}

// ownHost returns a function that reports whether the Host of a request names this server: a name
// of this machine, or the name in its public URL. If other machines may reach the server, they use
// IP addresses that the server does not know, such as the address of a container's host. So expose
// accepts every IP address. A page of another site sends the name of that site, which is refused.
func ownHost(publicURL string, expose bool) func(*http.Request) bool {
	var names []string
	if u, err := url.Parse(publicURL); err == nil {
		names = []string{strings.ToLower(u.Hostname())}
	}
	return func(r *http.Request) bool {
		host, err := url.Parse("http://" + r.Host)
		return operator.OwnHost(r, names) || expose && err == nil && net.ParseIP(host.Hostname()) != nil
	}
}

// dev runs services for development until ctx ends, and then deletes their databases.
func dev(ctx context.Context, cfg node.Config, services int, expose bool, stdout, stderr io.Writer) (err error) {
	if err := checkExposure(cfg.Listen, expose); err != nil {
		return err
	}
	shown := terminal.New(stderr)
	started := shown.Show()
	defer started()
	log := cfg.Logger(shown)
	if expose {
		log.Warn("anyone who reaches this address can sign as any account and erase everything", "listen", cfg.Listen)
	}
	listeners, err := listenAll(cfg.Listen, services)
	if err != nil {
		return err
	}
	defer closeAll(listeners) // the servers, if there are any, have closed them already
	all, err := startNetwork(ctx, cfg, listeners, log, shown.Step)
	started()
	if err != nil && ctx.Err() != nil {
		log.Warn("stopped while starting", "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.close(ctx)) }()
	all.handle(expose, stdout)
	return all.serve(ctx, stdout)
}

// forDevelopment completes the configuration of a server that listens on addr. plcURL is the URL of
// the network's directory.
func forDevelopment(cfg *node.Config, addr net.Addr, plcURL string) error {
	cfg.PLCURL = plcURL
	cfg.AllowLoopback = true // for webhooks of the app under test, and for services of this network
	cfg.ReportKey = reportKey
	return cfg.Complete(addr)
}

// urlOf returns the URL by which this process reaches a server that listens on addr.
func urlOf(addr net.Addr) (string, error) {
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return "", fmt.Errorf("read the listener's port: %w", err)
	}
	host := "127.0.0.1"
	if at, ok := addr.(*net.TCPAddr); ok && at.IP.IsLoopback() {
		host = at.IP.String()
	}
	return "http://" + net.JoinHostPort(host, port), nil
}
