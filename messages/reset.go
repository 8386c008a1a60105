package messages

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/mls"
	"mlsd/outbox"
)

// KindReset is the kind of the two log entries of a reset, which are not MLS messages. One is the
// last entry of the convo that the reset closes. The other is the first entry of the convo that the
// reset opens. Each entry names the other convo.
const KindReset = mls.ContentType(outbox.Reset)

// ClosedError refuses a write to a convo that was reset. It is an ErrConvoClosed.
type ClosedError struct {
	Successor uuid.UUID // the convo that replaces the closed convo
}

// Error has the fixed form that clients behind a PDS parse.
func (e *ClosedError) Error() string {
	return fmt.Sprintf("the convo was reset: read it to its end, and go on in another one; successorConvoId=%s",
		e.Successor)
}

// Is makes errors.Is find ErrConvoClosed.
func (e *ClosedError) Is(target error) bool { return target == ErrConvoClosed }

// Closed is the refusal of a write to a closed convo. successor is uuid.Nil if the convo was not
// reset.
func Closed(successor uuid.UUID) error {
	if successor == uuid.Nil {
		return ErrConvoClosed
	}
	return &ClosedError{successor}
}

// ResetEntry is one of the log entries of a reset.
type ResetEntry struct {
	ConvoID uuid.UUID
	Sender  syntax.DID
	Epoch   int64 // the convo's epoch
	Body    []byte
	Hash    [sha256.Size]byte // hash of the request
	Opens   bool              // the entry is the first entry of the successor
	Detail  outbox.Detail     // detail of the entry's event
}

// AppendReset writes e as the next entry of its log, with its event, and returns its seq. The
// caller's transaction must hold the row lock of the convo. No client can send the keys of these
// entries.
func AppendReset(ctx context.Context, tx pgx.Tx, e ResetEntry) (seq int64, at time.Time, err error) {
	key := "\x01closes"
	if e.Opens {
		key = "\x01opens"
	}
	event := outbox.Event{Kind: outbox.Reset, Detail: e.Detail}
	seq, at, err = appendEntry(ctx, tx, event, e.ConvoID, e.Sender, e.Epoch, e.Body, key, e.Hash)
	return seq, at, errs.Wrap(err, "append the entry of a reset")
}
