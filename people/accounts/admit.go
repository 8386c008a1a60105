package accounts

import (
	"context"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Mode says whom a node admits.
type Mode string

// The modes.
const (
	ModeOpen      Mode = "open"      // everybody
	ModeAllowlist Mode = "allowlist" // the accounts of a file
	ModeClosed    Mode = "closed"    // the accounts that the service knows already
)

// checkKnown fails unless this service knows the account: it is a member of a convo now, or has a
// KeyPackage or a push target here. A KeyPackage counts until it is deleted, 30 days after its end.
func (g *Gate) checkKnown(ctx context.Context, did syntax.DID) error {
	now := g.cfg.Now()
	if a, ok := g.known.Get(did); ok {
		fresh := knownFresh
		if a.err != nil {
			fresh = answerFresh // somebody can invite the account at any time
		}
		if now.Sub(a.at) < fresh {
			return a.err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var known bool
	err := g.cfg.Lookups.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM members WHERE did = $1 AND left_at IS NULL)
			OR EXISTS (SELECT FROM key_packages WHERE did = $1)
			OR EXISTS (SELECT FROM push_targets WHERE did = $1)`, did).Scan(&known)
	if err != nil {
		return fmt.Errorf("read whether an account is known: %w", err)
	}
	var why error
	if !known {
		why = ErrNotAdmitted
	}
	g.known.Add(did, answer{why, now})
	return why
}
