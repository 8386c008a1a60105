package attachments

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/internal/pgpool"
	"mlsd/messages"
)

// Config is what a Service uses.
type Config struct {
	DB         *pgxpool.Pool
	Store      Store
	Writes     *idem.Store
	ServiceDID syntax.DID    // says whose the store is
	MaxSize    int64         // of an attachment, in bytes
	Life       time.Duration // how long the reservation of a completion lives at most
	Lease      time.Duration // how long it lives without a heartbeat
	Log        *slog.Logger
	Faults     *failpoint.Set // nil: none
}

// Service stores and reads attachments.
type Service struct {
	cfg    Config
	prefix atomic.Pointer[string] // of the names of objects; nil: not read yet
}

// New returns a service.
func New(c Config) *Service { return &Service{cfg: c} }

// Objects of a database have a prefix in the store, so that a second database which uses the same
// store does not take them for orphans.
func (s *Service) objects(ctx context.Context) (prefix string, err error) {
	if known := s.prefix.Load(); known != nil {
		return *known, nil
	}
	var id uuid.UUID
	if err := s.cfg.DB.QueryRow(ctx, `SELECT id FROM installation`).Scan(&id); err != nil {
		return "", fmt.Errorf("read the name of the store: %w", err)
	}
	prefix = id.String() + "/"
	s.prefix.Store(&prefix)
	return prefix, nil
}

// Status is an attachment and the numbers of the parts that are in the store.
type Status struct {
	*Attachment
	There []int
	Since *time.Time // when the running completion began; nil: none is running
}

// Status returns what a member may know of an attachment. Error: ErrNotFound.
func (s *Service) Status(ctx context.Context, q pgpool.Queryer, w messages.Window, id uuid.UUID) (Status, error) {
	a, err := find(ctx, q, w, id)
	if err != nil {
		return Status{}, err
	}
	parts, err := partsOf(ctx, q, id)
	if err != nil {
		return Status{}, err
	}
	st := Status{Attachment: a, There: make([]int, len(parts))}
	for i, p := range parts {
		st.There[i] = p.part
	}
	if a.State == Checking {
		st.Since, err = s.cfg.Writes.RunningSince(ctx, s.completion(a))
	}
	return st, err
}
