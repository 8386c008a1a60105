package clientsim

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// reach finds the server, or starts one.
func (c *Config) reach(ctx context.Context, dir *Directory, progress *Progress) (_ target, stop func() error, err error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 256
	transport.Proxy = nil
	to := target{base: c.Server, audience: c.ServiceDID, transport: transport, dir: dir}
	if to.audience == "" {
		to.audience = DefaultServiceDID
	}
	if c.Server != "" {
		if err := healthy(ctx, c.Server, transport); err != nil {
			return target{}, nil, err
		}
		progress.Line("server %s, which has to resolve DIDs at %s", c.Server, dir.URL())
		return to, func() error { transport.CloseIdleConnections(); return nil }, nil
	}
	home, err := os.MkdirTemp("", "clientsim-")
	if err != nil {
		return target{}, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(home))
		}
	}()
	// A server started by root runs its database as another user, who has to
	// get to the data directory.
	if err := os.Chmod(home, 0o755); err != nil {
		return target{}, nil, err
	}
	progress.Now("looking for mlsd")
	binary, err := FindServer(ctx, c.Binary, home)
	if err != nil {
		return target{}, nil, err
	}
	progress.Now("starting %s", binary)
	to.server = NewProc(binary, filepath.Join(home, "data"), dir.URL(), to.audience)
	if err := to.server.Start(ctx, nil); err != nil {
		return target{}, nil, err
	}
	to.base = to.server.URL()
	progress.Line("server %s, its data in %s", to.base, home)
	return to, func() error {
		transport.CloseIdleConnections()
		return errors.Join(to.server.Stop(), os.RemoveAll(home))
	}, nil
}

// healthy asks a foreign server whether it is there at all.
func healthy(ctx context.Context, base string, transport http.RoundTripper) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/xrpc/_health", nil)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	if err := swallow(resp); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("server: %s answers its health check with %s", base, resp.Status)
	}
	return nil
}
