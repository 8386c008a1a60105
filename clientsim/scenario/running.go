package scenario

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	. "mlsd/clientsim/steps"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
	"mlsd/internal/terminal"
)

// This file connects a run to a server that it did not start. A wrong set-up would look like broken
// promises, so one call is made first, and a refusal is explained.

// PLCListen is where the PLC directory listens for a running server, by default. The server needs
// MLSD_PLC_URL=http://127.0.0.1:2582.
const PLCListen = "127.0.0.1:2582"

// running is a server that the run did not start.
type running struct {
	base      string
	transport http.RoundTripper
	did       string        // that the server names; at first the given one
	directory string        // URL of the directory in which mlsd-dev looks accounts up; "" for mlsd
	ahead     time.Duration // how far its clock is ahead of ours, to the second
}

// join connects to the running server.
func (c *Config) join(
	ctx context.Context, transport *http.Transport, lines *terminal.Progress,
) (to testbed.Target, stop func() error, err error) {
	s := &running{base: strings.TrimSuffix(c.Server, "/"), transport: transport, did: c.ServiceDID}
	if err := s.identify(ctx); err != nil {
		return to, nil, err
	}
	listen := cmp.Or(c.PLCListen, PLCListen)
	if s.directory != "" {
		listen = "127.0.0.1:0" // nobody asks
	}
	dir, err := testbed.NewDirectory(listen)
	if err != nil {
		return to, nil, fmt.Errorf("the simulator's PLC directory cannot listen (--plc-listen): %w", err)
	}
	dir.Another = s.directory
	stop = func() error {
		transport.CloseIdleConnections()
		return dir.Close()
	}
	to = testbed.Target{Base: s.base, Audience: cmp.Or(c.ServiceDID, s.did), Transport: transport, Dir: dir}
	if err := s.probe(ctx, to); err != nil {
		return to, nil, errors.Join(err, stop())
	}
	lines.Line("server %s, %s, looks accounts up at %s", s.base, s.did, cmp.Or(s.directory, dir.URL))
	return to, stop, nil
}

// identify finds out what the server is. The error says in one sentence why it is no server for a
// run.
func (s *running) identify(ctx context.Context) error {
	if at, err := url.Parse(s.base); err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return fmt.Errorf("--server %s is no URL of a server, such as http://127.0.0.1:8080", s.base)
	}
	status, health, err := s.get(ctx, "/xrpc/_health")
	if err != nil {
		return fmt.Errorf("no server answers at %s: %w", s.base, err)
	}
	var healthy struct{ Version string }
	if status != http.StatusOK || json.Unmarshal(health, &healthy) != nil || healthy.Version == "" {
		return fmt.Errorf("the server at %s is not mlsd: it answers /xrpc/_health with %d %.100q", s.base, status, health)
	}
	if s.did, err = s.named(ctx); err != nil {
		return err
	}
	var dev struct{ Service, Directory string }
	if status, info, err := s.get(ctx, "/dev"); err == nil && status == http.StatusOK &&
		json.Unmarshal(info, &dev) == nil && dev.Service == "mlsd-dev" {
		s.directory = dev.Directory
	}
	return nil
}

// named returns the DID that the server names. A server whose DID is no did:web names none, so it
// must be given.
func (s *running) named(ctx context.Context) (string, error) {
	status, document, err := s.get(ctx, "/.well-known/did.json")
	if err != nil {
		return "", fmt.Errorf("the server at %s does not answer: %w", s.base, err)
	}
	if status == http.StatusNotFound && s.did != "" {
		return s.did, nil
	}
	type service struct{ Type string }
	var named struct {
		ID      string
		Service []service
	}
	if json.Unmarshal(document, &named) != nil || !slices.Contains(named.Service, service{"AtprotoMlsService"}) {
		return "", fmt.Errorf("the server at %s is not mlsd, or needs --service-did, because it answers "+
			"/.well-known/did.json with %d %.100q", s.base, status, document)
	}
	return named.ID, nil
}

// get makes a request, and reads the server's clock from the answer.
func (s *running) get(ctx context.Context, path string) (status int, body []byte, err error) {
	defer Catch(&err)
	ctx, cancel := context.WithTimeout(ctx, xrpc.AttemptLimit)
	defer cancel()
	req := Must(http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil))
	resp := Must(s.transport.RoundTrip(req))
	if clock, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		s.ahead = time.Until(clock).Round(time.Second)
	}
	const most = 1 << 20
	body, err = io.ReadAll(io.LimitReader(resp.Body, most))
	return resp.StatusCode, body, errors.Join(err, resp.Body.Close())
}

// probe makes one call with a token of a new account.
func (s *running) probe(ctx context.Context, to testbed.Target) (err error) {
	defer Catch(&err)
	account := Must(xrpc.NewAccount(0))
	Check(to.Dir.Register(account))
	client := xrpc.NewClient(to.Base, to.Audience, to.Transport, &xrpc.Stats{})
	_, err = client.Once(ctx, account, xrpc.ConvosCall("", 1))
	return s.explain(err, to, s.directory != "" || to.Dir.Asked(account.DID))
}

// clocksAgree is the largest difference of clocks that cannot make a token too old or too early.
const clocksAgree = 30 * time.Second

// explain says in one sentence why the server refused the first call. asked is set if the server
// has looked the account up.
func (s *running) explain(err error, to testbed.Target, asked bool) error {
	var refused *xrpc.CallError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &refused):
		return fmt.Errorf("the server at %s does not answer the simulator's first call: %w", s.base, err)
	}
	audience, _, _ := strings.Cut(to.Audience, "#")
	why := "of this answer"
	switch refused.Status {
	case http.StatusUnauthorized, http.StatusServiceUnavailable:
		switch {
		case audience != s.did:
			why = fmt.Sprintf("its DID is %s, and --service-did is %s", s.did, to.Audience)
		case s.ahead.Abs() > clocksAgree:
			side := map[bool]string{true: "ahead of", false: "behind"}[s.ahead > 0]
			why = fmt.Sprintf("the clocks differ: its clock is %s %s the clock of this machine", s.ahead.Abs(), side)
		case !asked:
			why = fmt.Sprintf("it looks accounts up in another PLC directory than the simulator's: start it with "+
				"MLSD_PLC_URL=%s", to.Dir.URL)
		}
	case http.StatusForbidden:
		why = "it does not admit the simulator's accounts (MLSD_ADMIT)"
	}
	return fmt.Errorf("the server at %s refuses the simulator's first call because %s (%w)", s.base, why, refused)
}
