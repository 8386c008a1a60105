package testbed

import (
	"context"
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
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("server: %s?%s: %s", path, values.Encode(), resp.Status)
	}
	return nil
}
