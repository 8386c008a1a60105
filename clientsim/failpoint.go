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
	return p.tell(ctx, "/failpoints", url.Values{"point": {point}, "method": {method.String()}, "action": {action}})
}

// How a server writes messages. All but SendsTogether are there to be measured beside it.
const (
	SendsTogether = "together" // in transactions that messages share
	SendsAlone    = "alone"    // each in a transaction of its own, and so is the use of its token
	SendsNowhere  = "nowhere"  // not at all
)

// SetSends changes how the server writes messages.
func (p *Proc) SetSends(ctx context.Context, mode string) error {
	return p.tell(ctx, "/sends", url.Values{"mode": {mode}})
}

// tell posts to the admin listener.
func (p *Proc) tell(ctx context.Context, path string, values url.Values) error {
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
	if err := swallow(resp); err != nil {
		return fmt.Errorf("server: %s: %w", path, err)
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("server: %s?%s: %s", path, values.Encode(), resp.Status)
	}
	return nil
}
