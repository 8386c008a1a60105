package attachments

import (
	"context"
	"crypto/sha256"
	"encoding"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/nsid"
	"mlsd/messages"
)

// NSIDCheck names the transactions that record a completion's progress, for failpoints.
const NSIDCheck = "mlsd.attachments.check"

// completion is the request that completes an attachment. It is the same for all members, so that
// only one of them does the work.
func (s *Service) completion(a *Attachment) idem.Request {
	return idem.Request{
		Caller: a.Sender, NSID: nsid.CompleteAttachment, Scope: a.ConvoID.String(), Key: "attachment:" + a.ID.String(),
		Input: idem.Content{{Name: "attachmentId", JSON: []byte(`"` + a.ID.String() + `"`)}},
		Life:  s.cfg.Life, Lease: s.cfg.Lease,
	}
}

// Complete reads all parts and compares their SHA-256 with the announced SHA-256. If ctx ends
// before that, the next call continues after the last checked part. Errors: ErrNotFound,
// *IncompleteError, *FailedError, idem.ErrInProgress, ErrStore.
func (s *Service) Complete(ctx context.Context, w messages.Window, id uuid.UUID) (*Attachment, error) {
	a, err := find(ctx, s.cfg.DB, w, id)
	if err != nil {
		return nil, err
	}
	switch a.State {
	case Complete:
		return a, nil
	case Failed:
		return nil, &FailedError{a.Failure}
	case Uploading: // needs no reservation to refuse
		parts, err := partsOf(ctx, s.cfg.DB, id)
		if err == nil {
			err = a.missing(parts)
		}
		if err != nil {
			return nil, err
		}
	}
	answer, err := s.cfg.Writes.Run(ctx, s.completion(a), (&check{Service: s, a: a}).work)
	switch {
	case errors.Is(err, idem.ErrLeaseLost):
		return nil, idem.ErrInProgress // another holder is checking
	case err != nil:
		return nil, err
	case answer.Outcome == idem.Failure:
		return nil, &FailedError{string(answer.Body)}
	}
	return a, nil
}

// check is the work of one holder of the reservation.
type check struct {
	*Service
	a       *Attachment
	fence   int64
	hash    hash.Hash
	checked int // number of parts
	parts   []partRow
}

// mismatch is why an attachment fails.
const mismatch = "the SHA-256 of the content is not the announced one"

// work is an [idem.Work]. All its writes carry the fence, so after a takeover they change nothing.
func (c *check) work(ctx context.Context, fence int64) (idem.Done, error) {
	c.fence, c.hash = fence, sha256.New()
	ended, err := c.begin(ctx)
	if err != nil || ended != nil {
		return deref(ended), err
	}
	for _, p := range c.parts[c.checked:] {
		ok, err := c.read(ctx, p)
		if err != nil {
			return idem.Done{}, err
		}
		if !ok {
			return idem.Done{}, c.reject(ctx, p)
		}
		if err := c.progress(ctx); err != nil {
			return idem.Done{}, err
		}
	}
	if [sha256.Size]byte(c.hash.Sum(nil)) != c.a.SHA256 {
		return idem.Done{Outcome: idem.Failure, Response: []byte(mismatch), Effect: c.fail}, nil
	}
	return idem.Done{Outcome: idem.Success, Response: []byte(c.a.URI()), Effect: c.complete}, nil
}

func deref(d *idem.Done) idem.Done {
	if d == nil {
		return idem.Done{}
	}
	return *d
}

// begin takes the attachment for this holder, and reads the progress of the previous holder. If the
// work was done already, it returns its end.
func (c *check) begin(ctx context.Context) (ended *idem.Done, err error) {
	var digest []byte
	var incomplete error
	err = pgx.BeginFunc(ctx, c.cfg.DB, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			UPDATE attachments SET state = 'checking', fence = $2, touched_at = clock_timestamp()
			WHERE id = $1 AND state IN ('uploading', 'checking') AND fence < $2
			RETURNING checked_parts, digest`, c.a.ID, c.fence).Scan(&c.checked, &digest)
		if errors.Is(err, pgx.ErrNoRows) {
			ended, err = c.ended(ctx, tx)
			return err
		}
		if err != nil {
			return err
		}
		if c.parts, err = partsOf(ctx, tx, c.a.ID); err != nil {
			return err
		}
		if incomplete = c.a.missing(c.parts); incomplete == nil {
			return nil
		}
		_, err = tx.Exec(ctx, `UPDATE attachments SET state = 'uploading' WHERE id = $1`, c.a.ID)
		return err
	})
	if err == nil {
		err = incomplete
	}
	if err != nil {
		return nil, fmt.Errorf("begin to check: %w", err)
	}
	if digest == nil {
		return ended, nil
	}
	if err := c.hash.(encoding.BinaryUnmarshaler).UnmarshalBinary(digest); err != nil { // from another version of Go
		c.checked = 0
		c.hash.Reset()
	}
	return ended, nil
}

// ended returns the outcome for an attachment that can no longer be checked.
func (c *check) ended(ctx context.Context, tx pgx.Tx) (*idem.Done, error) {
	var state State
	var failure string
	err := tx.QueryRow(ctx, `SELECT state, coalesce(failure, '') FROM attachments WHERE id = $1`, c.a.ID).
		Scan(&state, &failure)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || state == Deleted:
		return nil, ErrNotFound
	case err != nil:
		return nil, err
	case state == Complete:
		return &idem.Done{Outcome: idem.Success, Response: []byte(c.a.URI())}, nil
	case state == Failed:
		return &idem.Done{Outcome: idem.Failure, Response: []byte(failure)}, nil
	}
	return nil, idem.ErrLeaseLost
}

// copyBuffer is the memory for reading parts, in bytes.
const copyBuffer = 64 << 10

// read adds a part to the hash. ok is false if the store no longer has the bytes that it was given.
func (c *check) read(ctx context.Context, p partRow) (ok bool, err error) {
	length := c.a.length(p.part)
	body, err := c.cfg.Store.Open(ctx, p.object, 0, length)
	if errors.Is(err, ErrNoObject) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: open: %w", ErrStore, err)
	}
	defer body.Close()
	own := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(c.hash, own), body, make([]byte, copyBuffer))
	if err != nil {
		return false, fmt.Errorf("%w: read: %w", ErrStore, err)
	}
	return n == length && string(own.Sum(nil)) == string(p.sha256), nil
}

// progress records that one more part is checked.
func (c *check) progress(ctx context.Context) error {
	c.checked++
	digest, err := c.hash.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return fmt.Errorf("keep the hash: %w", err)
	}
	if err := c.cfg.Faults.Hit(ctx, failpoint.BeforeCommit, NSIDCheck); err != nil {
		return err
	}
	tag, err := c.cfg.DB.Exec(ctx, `
		UPDATE attachments SET checked_parts = $3, digest = $4, touched_at = clock_timestamp()
		WHERE id = $1 AND state = 'checking' AND fence = $2`, c.a.ID, c.fence, c.checked, digest)
	if err != nil {
		return fmt.Errorf("record the progress: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return idem.ErrLeaseLost
	}
	return c.cfg.Faults.Hit(ctx, failpoint.AfterCommit, NSIDCheck)
}

// reject removes a part that the store does not have as it was sent. The client sends the part
// again.
func (c *check) reject(ctx context.Context, p partRow) error {
	err := pgx.BeginFunc(ctx, c.cfg.DB, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE attachments SET state = 'uploading', touched_at = clock_timestamp() WHERE id = $1 AND state = 'checking' AND
				fence = $2`,
			c.a.ID, c.fence)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return idem.ErrLeaseLost
		}
		_, err = tx.Exec(ctx, `DELETE FROM attachment_parts WHERE attachment_id = $1 AND part = $2`, c.a.ID, p.part)
		return err
	})
	if err != nil {
		return fmt.Errorf("reject a part: %w", err)
	}
	c.cfg.Log.WarnContext(ctx, "the store does not have a part as it was sent", "attachment", c.a.ID, "part", p.part)
	c.discard(ctx, p.object)
	return &IncompleteError{Missing: []int{p.part}}
}

// complete is the effect of a success. It runs in the transaction that checks the reservation's
// fence. It gives the attachment its place in the log: the place of the next message.
func (c *check) complete(ctx context.Context, tx pgx.Tx) error {
	tag, err := tx.Exec(ctx, `
		UPDATE attachments SET state = 'complete', kept_from = clock_timestamp(), digest = NULL,
			seq = coalesce((SELECT last_seq FROM convos WHERE id = attachments.convo_id), 0) + 1
		WHERE id = $1 AND state = 'checking' AND fence = $2`, c.a.ID, c.fence)
	return c.end(ctx, tx, tag, err)
}

// fail is the effect of a final failure.
func (c *check) fail(ctx context.Context, tx pgx.Tx) error {
	tag, err := tx.Exec(ctx, `
		UPDATE attachments SET state = 'failed', failure = $3, digest = NULL, touched_at = clock_timestamp()
		WHERE id = $1 AND state = 'checking' AND fence = $2`, c.a.ID, c.fence, mismatch)
	return c.end(ctx, tx, tag, err)
}

// end returns the result of an effect. An attachment that was deleted meanwhile stays deleted.
func (c *check) end(ctx context.Context, tx pgx.Tx, tag pgconn.CommandTag, err error) error {
	if err != nil || tag.RowsAffected() == 1 {
		return err
	}
	var other bool
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM attachments WHERE id = $1 AND state <> 'deleted')`,
		c.a.ID).Scan(&other)
	if err == nil && other {
		err = idem.ErrLeaseLost
	}
	return err
}
