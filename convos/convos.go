package convos

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/messages"
	"mlsd/mls"
)

// MaxMembers bounds the members of one convo.
const MaxMembers = 1000

// Errors of access and of commits. ErrNotFound and ErrNotMember are those of the
// message log.
var (
	ErrNotFound           = messages.ErrConvoNotFound
	ErrNotMember          = messages.ErrNotMember
	ErrGroupAlreadyExists = errors.New("a convo with this groupId exists already; if getConvos does not list it, " +
		"take another groupId")
	ErrTooManyMembers = fmt.Errorf("a convo has at most %d members", MaxMembers)
	ErrLastMember     = errors.New("the last member cannot leave; hide the convo in the app")
	ErrCommitRequired = errors.New("there is no commit, and the change needs one; make it with the MLS library")
	ErrForked         = errors.New("members have reported different authenticators of this epoch; offer the GroupInfo " +
		"with reportEpoch, which asks what most of them say")
	ErrNotPermitted    = errors.New("the caller is no admin; only admins remove another member")
	ErrTargetNotMember = errors.New("targetDid: was never a member of the convo; getConvo lists the members")
	ErrSeqAhead        = errors.New("seq: beyond the end of the log")
	ErrNoGroupInfo     = errors.New("no GroupInfo of the current epoch is known; a member can offer one with " +
		"publishGroupInfo, or the next commit that brings one makes it known")
)

func tooManyMembers(n int) error { return fmt.Errorf("%w; it would have %d", ErrTooManyMembers, n) }

// AlreadyMemberError names a DID that a commit adds, although the DID is a member.
type AlreadyMemberError struct {
	DID    syntax.DID
	Reason string // why the commit cannot replace the member's leaf; can be empty
}

func (e *AlreadyMemberError) Error() string {
	return e.DID.String() + " is a member already: " + cmp.Or(e.Reason, "leave it out")
}

// InvalidObjectError says why an MLS object does not fit its request.
type InvalidObjectError struct {
	Object Object
	Reason string
}

// Object is the kind of MLS object that was refused.
type Object string

const (
	Commit    Object = "commit"
	Welcome   Object = "welcomeMessage"
	GroupInfo Object = "groupInfo"
	Proposal  Object = "ciphertext"
)

func (e *InvalidObjectError) Error() string { return string(e.Object) + ": " + e.Reason }

func invalid(o Object, format string, args ...any) error {
	return &InvalidObjectError{Object: o, Reason: fmt.Sprintf(format, args...)}
}

// Convo is a group as its members see it.
type Convo struct {
	ID            uuid.UUID
	GroupID       []byte
	Creator       syntax.DID
	Members       []Member // current members, in the order in which they joined
	Epoch         int64
	CipherSuite   mls.CipherSuite
	CreatedAt     time.Time
	CommitLevel   Level // level of the commit that created the epoch
	LastMessageAt *time.Time
	Name          *string
	Description   *string
	LastSeq       int64
	ClosedAt      *time.Time    // nil while the convo is open
	Successor     []byte        // group_id of the group that replaces this one; nil if open or not known
	SuccessorID   uuid.NullUUID // the successor, if the convo was reset
	PredecessorID uuid.NullUUID // the convo whose reset opened this one
	Request       bool          // the reader has not accepted the convo
	Admin         bool          // the reader is an admin
	InvitedBy     *syntax.DID   // who added the reader last; nil if the reader created the convo, or if it is not known
	// Unread counts the application messages by other members after the reader's cursor, up to 100.
	// If more than 1,000 entries are to be read, each call of List counts 1,000 of them further.
	Unread int64
}

// Member is one person in a convo.
type Member struct {
	DID      syntax.DID
	JoinedAt time.Time
	Admin    bool
}

// Advanced is the result of a change of the roster or the epoch.
type Advanced struct {
	Epoch int64
	Seq   int64 // seq of the commit; 0 if there was no commit
	// Blocked is the person that a Departure with Block has blocked. It is "" if it is not known
	// who invited the caller.
	Blocked syntax.DID
}
