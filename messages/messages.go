package messages

import (
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"

	"mlsd/mls"
)

// Refusals. A caller who was never a member gets ErrConvoNotFound, just as for an id that never
// existed.
var (
	ErrConvoNotFound = errors.New("no such convo, or the caller was never its member; getConvos lists the caller's")
	ErrNotMember     = errors.New("the caller is no longer a member of the convo; a member can add it again")
	ErrInvalidCursor = errors.New("the cursor is not a message of this convo; send one that this method gave, or none")
	ErrWrongGroup    = errors.New("the ciphertext belongs to another group than the convo; send it to the convo " +
		"of its group")
	ErrInvalidAsset = errors.New("embedUri: the convo has no such attachment that is complete; complete it first")
	ErrConvoClosed  = errors.New("the convo is closed, and takes no more messages and commits; getConvo names its " +
		"successorGroupId if it has one")
)

// EpochMismatchError says that an object was made in another epoch than the convo's current epoch.
type EpochMismatchError struct {
	Epoch   int64 // the object's epoch, from its own MLS header
	Current int64 // the convo's epoch, read under its row lock
	WonBy   int64 // seq of the commit that ended Epoch; 0 if there is none, or if it was not looked up
}

// Error has the fixed form that clients behind a PDS parse.
func (e *EpochMismatchError) Error() string {
	if e.Epoch > e.Current {
		return fmt.Sprintf("epoch %d is ahead; currentEpoch=%d", e.Epoch, e.Current)
	}
	return fmt.Sprintf("epoch %d is stale; currentEpoch=%d", e.Epoch, e.Current)
}

// Message is one entry of the log as a reader gets it.
type Message struct {
	ID        uuid.UUID
	ConvoID   uuid.UUID
	Seq       int64
	Kind      mls.ContentType
	Sender    syntax.DID
	Epoch     int64 // for a commit, the epoch that it creates
	Body      []byte
	EmbedType *string
	EmbedURI  *string
	CreatedAt time.Time // whole milliseconds
}
