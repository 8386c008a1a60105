package attachments

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/failpoint"
	"mlsd/messages"
)

// NSIDPut names the transactions that record a part, for failpoints.
const NSIDPut = "mlsd.attachments.put"

// Put reads one part from body, stores it, and returns its SHA-256. To send the same part again
// does no harm. Once the attachment is complete, Put answers from the stored part without reading
// body, unless the store has lost the part. Nothing reads body after Put has returned. Put calls
// pay with the number of bytes before it reads them; pay can refuse. Errors: ErrNotFound,
// ErrNoPart, ErrChecking, *FailedError, *PartLengthError, errors of pay, body and the store.
func (s *Service) Put(ctx context.Context, w messages.Window, id uuid.UUID, part int, body io.Reader,
	pay func(bytes int64) error) (sum [sha256.Size]byte, err error) {
	a, err := find(ctx, s.cfg.DB, w, id)
	if err != nil {
		return sum, err
	}
	length := a.length(part)
	switch {
	case length == 0:
		return sum, fmt.Errorf("%w: its parts are 1 to %d, and this one is %d", ErrNoPart, a.Parts(), part)
	case a.State == Complete:
		stored, err := s.storedPart(ctx, id, part)
		if err != nil {
			return sum, err
		}
		if !s.lost(ctx, stored.object) {
			return [sha256.Size]byte(stored.sha256), nil
		}
	case a.State != Uploading:
		return sum, a.refusal()
	}
	prefix, err := s.objects(ctx)
	if err != nil {
		return sum, err
	}
	if err := pay(length); err != nil {
		return sum, err
	}
	object := fmt.Sprintf("%s%s/%d-%s", prefix, id, part, strings.ToLower(rand.Text()))
	in := &partReader{body: body, left: length, length: length, hash: sha256.New()}
	err = s.cfg.Store.Put(ctx, object, in, length)
	in.close()
	if err == nil && in.err == nil && in.left > 0 {
		err = errUnread
	}
	if err != nil {
		s.discard(ctx, object)
		if in.err != nil { // the client is at fault, not the store
			return sum, in.err
		}
		return sum, fmt.Errorf("%w: put: %w", ErrStore, err)
	}
	if err := in.end(); err != nil {
		s.discard(ctx, object)
		return sum, err
	}
	in.hash.Sum(sum[:0])
	return sum, s.keep(ctx, a, partRow{part, object, sum[:]})
}

// recordTimeout bounds the recording of a part, and then the look-up of its outcome.
const recordTimeout = 10 * time.Second

// keep makes a stored object the part of an attachment. If the object does not become the part,
// keep deletes it, even if the client has disconnected, because no quota counts the object.
func (s *Service) keep(ctx context.Context, a *Attachment, p partRow) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	record := s.record
	if a.State == Complete {
		record = s.replace
	}
	err := s.cfg.Faults.Hit(ctx, failpoint.BeforeCommit, NSIDPut)
	var needless string
	if err == nil {
		needless, err = record(ctx, a, p)
	}
	if err == nil {
		err = s.cfg.Faults.Hit(ctx, failpoint.AfterCommit, NSIDPut)
	}
	switch {
	case err == nil && needless != "":
		s.discard(ctx, needless)
	case err == nil:
	// The outcome is known: no row names the object.
	case errors.Is(err, ErrNotFound) || errors.Is(err, ErrChecking) || errors.Is(err, errOtherPart):
		s.discard(ctx, p.object)
	default:
		s.discardUnnamed(ctx, a, p)
	}
	return err
}

// discardUnnamed deletes an object unless a row names it. It waits until a COMMIT of such a row is
// over. If the database does not answer, the sweeper deletes the object.
func (s *Service) discardUnnamed(ctx context.Context, a *Attachment, p partRow) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	var named bool
	err := pgx.BeginFunc(ctx, s.cfg.DB, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM attachments WHERE id = $1 FOR UPDATE`, a.ID); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM attachment_parts WHERE object = $1)`, p.object).Scan(&named)
	})
	switch {
	case err != nil:
		s.cfg.Log.WarnContext(ctx, "it is not known whether a part was recorded; its object is left for the sweeper",
			"attachment", a.ID, "error", err)
	case !named:
		s.discard(ctx, p.object)
	}
}

// refusal returns the reason why an attachment takes no parts.
func (a *Attachment) refusal() error {
	if a.State == Failed {
		return &FailedError{a.Failure}
	}
	return ErrChecking
}

// record makes an object the part of an attachment. It returns the object that is no longer needed:
// that of the former part, or the new object if the content is the same.
func (s *Service) record(ctx context.Context, a *Attachment, p partRow) (needless string, err error) {
	err = pgx.BeginFunc(ctx, s.cfg.DB, func(tx pgx.Tx) error {
		// The lock of the row makes this run before or after the beginning of the completion. If
		// the part now has another object, the earlier check no longer counts.
		tag, err := tx.Exec(ctx, `
			UPDATE attachments SET touched_at = clock_timestamp(),
				checked_parts = CASE WHEN checked_parts < $2 THEN checked_parts ELSE 0 END,
				digest = CASE WHEN checked_parts < $2 THEN digest END
			WHERE id = $1 AND state = 'uploading'`, a.ID, p.part)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			var there bool
			err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM attachments WHERE id = $1 AND state <> 'deleted')`,
				a.ID).Scan(&there)
			if err == nil {
				err = ErrChecking
				if !there {
					err = ErrNotFound
				}
			}
			return err
		}
		err = tx.QueryRow(ctx, `
			WITH before AS (
				SELECT object, sha256 FROM attachment_parts WHERE attachment_id = $1 AND part = $2
			), stored AS (
				INSERT INTO attachment_parts (attachment_id, part, object, sha256) VALUES ($1, $2, $3, $4)
				ON CONFLICT (attachment_id, part) DO UPDATE SET object = excluded.object, sha256 = excluded.sha256
				WHERE attachment_parts.sha256 <> excluded.sha256
			)
			SELECT CASE WHEN sha256 = $4 THEN $3 ELSE object END FROM before`, a.ID, p.part, p.object, p.sha256).Scan(&needless)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return needless, errs.Wrap(err, "record a part")
}

// errOtherPart says that a part of a complete attachment was sent again with different content.
var errOtherPart = &FailedError{"the part is not the one that the attachment was completed with"}

// replace makes an object the part of a complete attachment, instead of a lost object with the same
// content. It returns the lost object. If another request was faster, it returns the new object.
func (s *Service) replace(ctx context.Context, a *Attachment, p partRow) (needless string, err error) {
	old, err := s.storedPart(ctx, a.ID, p.part)
	switch {
	case err != nil:
		return "", err
	case string(old.sha256) != string(p.sha256):
		return "", errOtherPart
	case !s.lost(ctx, old.object):
		return p.object, nil
	}
	tag, err := s.cfg.DB.Exec(ctx, `
		UPDATE attachment_parts SET object = $4
		WHERE attachment_id = $1 AND part = $2 AND object = $3
			AND EXISTS (SELECT FROM attachments WHERE id = $1 AND state = 'complete' FOR SHARE)`, a.ID, p.part, old.object,
		p.object)
	if err != nil {
		return "", fmt.Errorf("replace a lost part: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return p.object, nil
	}
	s.cfg.Log.WarnContext(ctx, "a part that the store had lost was sent again", "attachment", a.ID, "part", p.part)
	return old.object, nil
}

// lost reports whether the store says that it does not have an object.
func (s *Service) lost(ctx context.Context, object string) bool {
	body, err := s.cfg.Store.Open(ctx, object, 0, 1)
	if err == nil {
		err = body.Close()
	}
	return errors.Is(err, ErrNoObject)
}

// storedPart returns a part of a complete attachment.
func (s *Service) storedPart(ctx context.Context, id uuid.UUID, part int) (partRow, error) {
	p := partRow{part: part, sha256: make([]byte, sha256.Size)}
	err := s.cfg.DB.QueryRow(ctx, `SELECT object, sha256 FROM attachment_parts WHERE attachment_id = $1 AND part = $2`, id,
		part).
		Scan(&p.object, &p.sha256)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound // it was deleted at this moment
	}
	return p, err
}

// discardTimeout bounds the deletion of an object that no row names.
const discardTimeout = 5 * time.Second

// discard deletes an object that no row names. If it fails, the sweeper deletes the object.
func (s *Service) discard(ctx context.Context, object string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	if err := s.cfg.Store.Delete(ctx, object); err != nil {
		s.cfg.Log.DebugContext(ctx, "an object is left for the sweeper", "error", err)
	}
}

// errUnread says that a store reported success before it had read the part.
var errUnread = errors.New("the store has answered before it had read the part")

// partReader reads a part and computes its hash. err keeps the reader's own error, about the body
// or its length, because stores wrap it in other errors.
//
// An HTTP store can continue to read after its Put has returned, if the service answered early.
// close ends such reads.
type partReader struct {
	closed atomic.Bool
	mu     sync.Mutex // held during a Read; guards the fields below

	body         io.Reader
	left, length int64
	hash         hash.Hash
	err          error
}

// close makes further Reads fail. It waits for a running Read, for as long as a client may send
// nothing, because to interrupt the Read would end the connection.
func (r *partReader) close() {
	r.closed.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
}

func (r *partReader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed.Load() {
		return 0, io.ErrClosedPipe
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.body.Read(p[:min(int64(len(p)), r.left)])
	r.hash.Write(p[:n])
	r.left -= int64(n)
	switch {
	case errors.Is(err, io.EOF) && r.left > 0:
		r.err = &PartLengthError{Want: r.length, Got: r.length - r.left}
		return n, io.ErrUnexpectedEOF
	case err != nil && !errors.Is(err, io.EOF):
		if !r.closed.Load() { // otherwise the store has failed first
			r.err = err
		}
		return n, err
	}
	return n, nil
}

// end checks that the body ends where the part ends.
func (r *partReader) end() error {
	if r.left > 0 {
		return &PartLengthError{Want: r.length, Got: r.length - r.left}
	}
	var one [1]byte
	n, err := io.ReadFull(r.body, one[:])
	switch {
	case n > 0:
		return &PartLengthError{Want: r.length, More: true}
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}
