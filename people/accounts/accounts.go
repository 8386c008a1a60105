// Package accounts says who may use this node: which accounts the operator has blocked or limited,
// what the network says about an account's state, and which accounts the node admits at all.
//
// The table accounts has a row for each account that is, or was, blocked, limited or not active.
// Store writes the table. Gate keeps the refused and the limited accounts in the memory of each
// node, and is asked on every request.
package accounts

import (
	"errors"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Status is the state of an account in the network.
type Status string

// The states, by the names of com.atproto.sync.subscribeRepos.
const (
	Active      Status = "active"
	Deactivated Status = "deactivated" // by the account's owner
	Suspended   Status = "suspended"   // by its host or a relay, for a time
	TakenDown   Status = "takendown"   // by its host or a relay
	Deleted     Status = "deleted"
)

// Erasing is the Status of an *InactiveError for an account that is being erased here. The network
// has no such state.
const Erasing Status = "erasing"

// Errors of Gate.Check, besides *InactiveError, and of Store.
var (
	ErrBlocked     = errors.New("the operator of this service has blocked the account")
	ErrNotAdmitted = errors.New("this service serves only accounts on its list")
	// ErrErasing refuses Store.Reactivate: nothing brings back what an erasure has begun to delete.
	ErrErasing = errors.New("the account is being erased")
	// ErrUnavailable says that the node cannot find out now whether it may serve the account.
	ErrUnavailable = errors.New("it cannot be checked now whether the account may use the service")
)

// InactiveError says that the network regards an account as not active.
type InactiveError struct{ Status Status }

func (e *InactiveError) Error() string {
	switch e.Status {
	case Deactivated:
		return "the account is deactivated; reactivate it at its PDS"
	case Suspended:
		return "the account is suspended; its PDS can say for how long"
	case Erasing:
		return "the account is being erased here; it can begin anew once that has ended"
	case TakenDown:
		return "the account is takendown; ask its PDS"
	}
	return "the account is deleted; its data here is erased later, unless it is restored at its PDS"
}

// IsRefusal reports whether err says that an account may not use this node.
func IsRefusal(err error) bool {
	return errors.Is(err, ErrBlocked) || errors.Is(err, ErrNotAdmitted) || errors.As(err, new(*InactiveError))
}

// Account is a row of the table accounts.
type Account struct {
	DID    syntax.DID `json:"did"`
	Status Status     `json:"status"` // what the network says of the account
	// StatusAt is the relay's time of the event that stated Status. It is nil if no event did.
	StatusAt *time.Time `json:"statusAt,omitempty"`
	// StatusSeq is the number of that event in the relay's stream.
	StatusSeq  *int64     `json:"-"`
	Block      *Block     `json:"block,omitempty"`      // nil if the account is not blocked
	Limit      *Limit     `json:"limit,omitempty"`      // nil if the account has no limit, or if the limit has ended
	EraseAfter *time.Time `json:"eraseAfter,omitempty"` // when all its data is due for erasure; nil means never
	ErasingAt  *time.Time `json:"erasingAt,omitempty"`  // when the running erasure began; nil if none is running
	// ErasedAt is when the account was last erased. It is nil if that never happened, or more than
	// a day ago.
	ErasedAt *time.Time `json:"erasedAt,omitempty"`
}

// Block is the operator's block of an account.
type Block struct {
	At     time.Time `json:"at"`
	By     string    `json:"operator"`
	Reason string    `json:"reason"`
}
