package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/terminal"
)

// loadFrom is the least length of a run that is a load. In a load, accounts send more than people
// do, and the server has no quotas.
const loadFrom = time.Minute

// connect connects to the given server, or starts one.
func (c *Config) connect(
	ctx context.Context, lines *terminal.Progress,
) (_ testbed.Target, stop func() error, err error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256
	transport.Proxy = nil
	to := testbed.Target{Base: c.Server, Audience: cmp.Or(c.ServiceDID, xrpc.DefaultServiceDID), Transport: transport}
	if c.Server != "" {
		if to.Dir, err = testbed.NewDirectory(c.PLCListen); err != nil {
			return to, nil, err
		}
		stop := func() error {
			transport.CloseIdleConnections()
			return to.Dir.Close()
		}
		if err := healthy(ctx, c.Server, transport); err != nil {
			return to, nil, errors.Join(err, stop())
		}
		lines.Line("server %s, which has to resolve DIDs at %s", c.Server, to.Dir.URL)
		return to, stop, nil
	}
	lines.Now("starting mlsd")
	e, err := testbed.NewEnvironment(ctx, c.PLCListen, testbed.Binary{Path: c.Binary})
	if err != nil {
		return to, nil, err
	}
	e.ServiceDID = to.Audience
	to.Server, to.Dir = e.Server("data"), e.Dir
	stop = func() error {
		transport.CloseIdleConnections()
		return e.Close(ctx)
	}
	var settings map[string]string
	if c.For > loadFrom {
		if settings, err = testbed.Unlimited(ctx, to.Server.Binary()); err != nil {
			return to, nil, errors.Join(err, stop())
		}
	}
	if err := to.Server.Start(ctx, settings); err != nil {
		return to, nil, errors.Join(err, stop())
	}
	to.Base = to.Server.URL()
	lines.Line("server %s, its data in %s", to.Base, e.Home)
	return to, stop, nil
}

// healthy asks a server that is not ours for its health.
func healthy(ctx context.Context, base string, transport http.RoundTripper) (err error) {
	defer CatchIn(&err, "server")
	ctx, cancel := context.WithTimeout(ctx, xrpc.AttemptLimit)
	defer cancel()
	req := Must(http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/xrpc/_health", nil))
	resp := Must(transport.RoundTrip(req))
	Check(xrpc.Drain(resp))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("server: %s answers its health check with %s", base, resp.Status)
	}
	return nil
}
