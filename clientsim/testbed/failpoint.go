package testbed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"mlsd/clientsim/xrpc"
)

// Failpoints of the server. Its admin listener arms them.
const (
	BeforeCommit = "before-commit"
	AfterCommit  = "after-commit"
	// These are for work outside the database, such as a push.
	BeforeReserve = "before-reserve"
	AfterReserve  = "after-reserve"
	AfterWork     = "after-work"
)

// What failpoints call the server's push work.
const (
	NSIDPushJob    = "mlsd.push"
	NSIDPushFanout = "mlsd.push.fanout"
)

// Arm makes the next transaction of method do action at a failpoint, once.
func (p *Proc) Arm(ctx context.Context, point string, method syntax.NSID, action string) error {
	return p.postAdmin(ctx, "/failpoints", url.Values{"point": {point}, "method": {method.String()}, "action": {action}})
}

// BenchTag is the build tag of a server that lets the benchmark choose how it writes messages.
const BenchTag = "mlsdbench"

// SendsMode is how a server writes messages. Only a server that is built with BenchTag knows more
// than SendsTogether.
type SendsMode string

// The ways to write messages.
const (
	SendsTogether SendsMode = "together" // many messages in one transaction, as every server does
	SendsAlone    SendsMode = "alone"    // each message, and the use of its token, in a transaction of its own
	SendsNowhere  SendsMode = "nowhere"  // not at all
)

// SetSends changes how the server writes messages.
func (p *Proc) SetSends(ctx context.Context, mode SendsMode) error {
	err := p.postAdmin(ctx, "/sends", url.Values{"mode": {string(mode)}})
	if errors.Is(err, errNotFound) {
		return fmt.Errorf("%w: build the server with -tags %s", err, BenchTag)
	}
	return err
}

// errNotFound says that the admin listener does not know a path.
var errNotFound = errors.New("404 Not Found")

// postAdmin posts to the admin listener.
func (p *Proc) postAdmin(ctx context.Context, path string, values url.Values) error {
	p.mu.Lock()
	admin := p.admin
	p.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, admin+path+"?"+values.Encode(), nil)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("server: %s: %w", path, err)
	}
	if err := xrpc.Drain(resp); err != nil {
		return fmt.Errorf("server: %s: %w", path, err)
	}
	if resp.StatusCode == http.StatusNotFound {
		return fmt.Errorf("server: %s?%s: %w", path, values.Encode(), errNotFound)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("server: %s?%s: %s", path, values.Encode(), resp.Status)
	}
	return nil
}
