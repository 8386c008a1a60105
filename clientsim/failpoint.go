package clientsim

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Failpoints of the server, see its admin listener.
const (
	BeforeCommit = "before-commit"
	AfterCommit  = "after-commit"
	// Of work outside the database, such as a push:
	BeforeReserve = "before-reserve"
	AfterReserve  = "after-reserve"
	AfterWork     = "after-work"
)

// What the server does for a push, as failpoints name it.
const (
	nsidPushJob    = "mlsd.push"
	nsidPushFanout = "mlsd.push.fanout"
)

// Arm makes the next transaction of method meet an action exactly before or
// after its COMMIT, or at another point of its work, once.
func (p *Proc) Arm(ctx context.Context, point string, method syntax.NSID, action string) error {
	p.mu.Lock()
	admin := p.admin
	p.mu.Unlock()
	values := url.Values{"point": {point}, "method": {method.String()}, "action": {action}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, admin+"/failpoints?"+values.Encode(), nil)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("server: arm: %w", err)
	}
	if err := swallow(resp); err != nil {
		return fmt.Errorf("server: arm: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("server: arm %s %s: %s", point, method, resp.Status)
	}
	return nil
}
