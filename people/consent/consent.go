// Package consent keeps whom a person lets into its convos, and what it lets others see: its blocks,
// its invitation policy, and who sees its cursors. It decides about each invitation, and about each
// claim of KeyPackages.
//
// A person that refuses a caller looks to that caller like a person without KeyPackages. The caller
// cannot tell a block from a policy, or either from an account that has published nothing.
//
// The package owns the tables blocks and policies.
package consent

import (
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// MaxBlocks bounds the blocks of one DID.
const MaxBlocks = 10_000

// Errors of blocks and policies.
var (
	ErrTooManyBlocks = fmt.Errorf("an account blocks at most %d others", MaxBlocks)
	ErrOwnBlock      = errors.New("did: an account cannot block itself")
	ErrUnknownPolicy = errors.New("policy must be everyone, shared or nobody")
)

// BlockedError says that the caller has blocked a DID that it invites, or whose KeyPackages it
// claims. It is about the caller's own blocks, never about those of others.
type BlockedError struct{ DID syntax.DID }

func (e *BlockedError) Error() string {
	return e.DID.String() + " is blocked by the caller; unblock it first with unblockActor"
}
