package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// loadFrom is the length from which a run is a load, in which accounts send more than people do. Its
// server has no quotas.
const loadFrom = time.Minute

// connect connects to the given server, or starts one.
func (c *Config) connect(ctx context.Context, dir *testbed.Directory, progress *Progress) (_ testbed.Target, stop func() error, err error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256
	transport.Proxy = nil
	to := testbed.Target{Base: c.Server, Audience: c.ServiceDID, Transport: transport, Dir: dir}
	if to.Audience == "" {
		to.Audience = xrpc.DefaultServiceDID
	}
	if c.Server != "" {
		if err := healthy(ctx, c.Server, transport); err != nil {
			return testbed.Target{}, nil, err
		}
		progress.Line("server %s, which has to resolve DIDs at %s", c.Server, dir.URL())
		return to, func() error { transport.CloseIdleConnections(); return nil }, nil
	}
	home, err := os.MkdirTemp("", "clientsim-")
	if err != nil {
		return testbed.Target{}, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(home))
		}
	}()
	// A server started by root runs its database as another user, who needs access to the data
	// directory.
	if err := os.Chmod(home, 0o755); err != nil {
		return testbed.Target{}, nil, err
	}
	progress.Now("looking for mlsd")
	binary, err := testbed.FindServer(ctx, c.Binary, home)
	if err != nil {
		return testbed.Target{}, nil, err
	}
	progress.Now("starting %s", binary)
	to.Server = testbed.NewProc(binary, filepath.Join(home, "data"), dir.URL(), to.Audience)
	var settings map[string]string
	if c.For > loadFrom {
		if settings, err = testbed.Unlimited(ctx, binary); err != nil {
			return testbed.Target{}, nil, err
		}
	}
	if err := to.Server.Start(ctx, settings); err != nil {
		return testbed.Target{}, nil, err
	}
	to.Base = to.Server.URL()
	progress.Line("server %s, its data in %s", to.Base, home)
	return to, func() error {
		transport.CloseIdleConnections()
		return errors.Join(to.Server.Stop(), os.RemoveAll(home))
	}, nil
}

// healthy asks a server that is not ours for its health.
func healthy(ctx context.Context, base string, transport http.RoundTripper) error {
	ctx, cancel := context.WithTimeout(ctx, xrpc.AttemptLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/xrpc/_health", nil)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	if err := xrpc.Drain(resp); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("server: %s answers its health check with %s", base, resp.Status)
	}
	return nil
}
