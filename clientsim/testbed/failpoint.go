package testbed

import (
	"context"
	"net/http"
	"net/url"

	"github.com/bluesky-social/indigo/atproto/syntax"
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

// What failpoints call the server's work for pushes and invitations.
const (
	NSIDInvitation = "mlsd.invitation"

	NSIDPushJob    = "mlsd.push"
	NSIDPushFanout = "mlsd.push.fanout"
)

// Arm makes the next transaction of method do action at a failpoint, once.
func (p *Proc) Arm(ctx context.Context, point string, method syntax.NSID, action string) error {
	query := url.Values{"point": {point}, "method": {method.String()}, "action": {action}}
	_, err := p.Admin(ctx, http.MethodPost, "/failpoints?"+query.Encode(), nil)
	return err
}
