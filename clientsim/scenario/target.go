package scenario

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

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
	if c.Server != "" {
		return c.join(ctx, transport, lines)
	}
	to := testbed.Target{Audience: cmp.Or(c.ServiceDID, xrpc.DefaultServiceDID), Transport: transport}
	lines.Now("starting mlsd")
	e, err := testbed.NewEnvironment(ctx, cmp.Or(c.PLCListen, "127.0.0.1:0"), testbed.Binary{Path: c.Binary})
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
