// Package attachments keeps encrypted files of convos. Clients encrypt them; the server has only
// ciphertext and its SHA-256. docs/clients/ATTACHMENTS.md is for clients.
//
// A file arrives in parts of a fixed size. The store keeps each part as an object of its own, which
// is written once and never changed, so no object is ever half written. A part that is sent again
// becomes another object, and the row of the part names the object that counts. So a late upload,
// from a node believed dead, changes nothing that was checked.
//
// Completing is work outside the database (idem.Store.Run). It computes the SHA-256 of all parts
// and compares it with the announced SHA-256. It records its progress after each part, so that
// another holder can continue from there.
package attachments

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/messages"
)

// PartSize is the size of the parts of new attachments, in bytes. It is within the usual limits of
// proxies. A slow client can send such a part through a PDS, which waits 30 s for a body.
const PartSize = 1 << 20

// State is the state of an attachment: see docs/ARCHITECTURE.md.
type State string

// The states.
const (
	Uploading State = "uploading"
	Checking  State = "checking"
	Complete  State = "complete"
	Failed    State = "failed"
	Deleted   State = "deleted"
)

// Errors of this package.
var (
	ErrNotFound     = errors.New("the convo has no such attachment for the caller; check attachmentId and convoId")
	ErrTooLarge     = errors.New("the attachment is too large")
	ErrNotPermitted = errors.New("the caller has not announced the attachment; only its sender deletes it")
	ErrChecking     = errors.New("the attachment is being completed; wait for getAttachmentStatus")
	ErrNoPart       = errors.New("the attachment has no part with this number")
	ErrOtherSize    = errors.New("this content was announced with another size")
	ErrEarlier      = errors.New("this content is from before the caller joined: encrypt the file under a fresh key")
)

// IncompleteError says that parts are missing.
type IncompleteError struct {
	Missing []int // the first missing parts
	More    bool  // more parts are missing
	Lost    bool  // the attachment was complete, but the store has lost the parts since
}

func (e *IncompleteError) Error() string {
	if len(e.Missing) == 0 {
		return "the attachment is not complete: call completeAttachment"
	}
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(e.Missing), " ", ", "), "[]")
	if e.More {
		text += ", and others"
	}
	if e.Lost {
		return "the store has lost a part of the attachment; who has the file sends it again with putAttachmentPart; " +
			"missing parts: " + text
	}
	return "the attachment is not complete; missing parts: " + text
}

// FailedError says why an attachment has failed for good.
type FailedError struct{ Reason string }

func (e *FailedError) Error() string { return e.Reason }

// PartLengthError says that a part does not have its length.
type PartLengthError struct {
	Want int64
	More bool  // the part is longer than Want
	Got  int64 // length of the part in bytes, unless More
}

func (e *PartLengthError) Error() string {
	if e.More {
		return fmt.Sprintf("the part's length in bytes must be %d, got more", e.Want)
	}
	return fmt.Sprintf("the part's length in bytes must be %d, got %d", e.Want, e.Got)
}

// Store holds objects outside the database. This package makes their names, of lower-case letters,
// digits, dashes, dots and slashes.
type Store interface {
	// Put stores size bytes of body under a name, as a whole. It replaces an object of that name.
	// After a failure the object may exist.
	Put(ctx context.Context, name string, body io.Reader, size int64) error
	// Open reads n bytes of an object from an offset. The error is ErrNoObject if there is no such
	// object.
	Open(ctx context.Context, name string, offset, n int64) (io.ReadCloser, error)
	// Delete deletes an object. It is no error if there is no such object.
	Delete(ctx context.Context, name string) error
	// List returns up to limit objects whose names begin with prefix and come after the name after,
	// in the order of their names. The result is empty only if there are no more.
	List(ctx context.Context, prefix, after string, limit int) ([]Object, error)
}

// Object is an object in a store.
type Object struct {
	Name string
	At   time.Time // when the object was written
}

// ErrStore says that the store failed.
var ErrStore = errors.New("the store of attachments failed")

// ErrNoObject says that the store has no such object.
var ErrNoObject = errors.New("the store has no such object")

// Attachment is one attachment.
type Attachment struct {
	ID           uuid.UUID
	ConvoID      uuid.UUID
	Sender       syntax.DID
	Size         int64
	SHA256       [sha256.Size]byte
	PartSize     int64
	State        State
	Seq          int64 // its place in the log, if it is complete; decides who can read it
	CheckedParts int
	Failure      string
}

// Parts is the number of parts. Parts are counted from 1.
func (a *Attachment) Parts() int { return int((a.Size + a.PartSize - 1) / a.PartSize) }

// length is the length of a part in bytes, or 0 if there is no such part.
func (a *Attachment) length(part int) int64 {
	if part < 1 || part > a.Parts() {
		return 0
	}
	return min(a.PartSize, a.Size-int64(part-1)*a.PartSize)
}

// uriPrefix begins the URI by which a message names an attachment.
const uriPrefix = "mlsd:attachment/"

// URI is the URI by which a message names the attachment.
func (a *Attachment) URI() string { return uriPrefix + a.ID.String() }

// Named reports whether uri is the URI of an attachment, and returns the id. If the id is
// malformed, Named returns an id that no attachment has.
func Named(uri string) (id uuid.UUID, ok bool) {
	text, ok := strings.CutPrefix(uri, uriPrefix)
	if !ok {
		return uuid.Nil, false
	}
	return ParseID(text), true
}

// ParseID parses the id of an attachment. If the id is malformed, it returns an id that no
// attachment has.
func ParseID(text string) uuid.UUID {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text {
		return uuid.Nil
	}
	return id
}

// find reads an attachment as a member sees it whose window of the convo's log is w. Until the
// attachment is complete, it has no place in the log, and only the person who announced it knows
// its id. Errors: ErrNotFound.
func find(ctx context.Context, q pgpool.Queryer, w messages.Window, id uuid.UUID) (*Attachment, error) {
	a := &Attachment{ID: id, ConvoID: w.ConvoID}
	var sum []byte
	err := q.QueryRow(ctx, `
		SELECT sender_did, size, sha256, part_size, state, coalesce(seq, 0), checked_parts, coalesce(failure, '')
		FROM attachments WHERE id = $1 AND convo_id = $2 AND state <> 'deleted'`, id, w.ConvoID).
		Scan(&a.Sender, &a.Size, &sum, &a.PartSize, &a.State, &a.Seq, &a.CheckedParts, &a.Failure)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("find the attachment: %w", err)
	}
	copy(a.SHA256[:], sum)
	if a.Seq != 0 && a.Seq < w.First {
		return nil, ErrNotFound
	}
	return a, nil
}

// partRow is the row of a part that is in the store.
type partRow struct {
	part   int
	object string
	sha256 []byte
}

// partsOf reads the parts of an attachment, in order.
func partsOf(ctx context.Context, q pgpool.Queryer, id uuid.UUID) ([]partRow, error) {
	rows := pgpool.Rows(ctx, q,
		`SELECT part, object, sha256 FROM attachment_parts WHERE attachment_id = $1 ORDER BY part`,
		id)
	parts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p partRow, err error) {
		return p, row.Scan(&p.part, &p.object, &p.sha256)
	})
	return parts, errs.Wrap(err, "read the parts")
}

// maxMissing bounds the part numbers in an IncompleteError.
const maxMissing = 20

// missing returns an *IncompleteError if parts are missing, else nil.
func (a *Attachment) missing(there []partRow) error {
	if len(there) == a.Parts() {
		return nil
	}
	e, i := &IncompleteError{}, 0
	for part := 1; part <= a.Parts(); part++ {
		switch {
		case i < len(there) && there[i].part == part:
			i++
		case len(e.Missing) == maxMissing:
			e.More = true
			return e
		default:
			e.Missing = append(e.Missing, part)
		}
	}
	return e
}
