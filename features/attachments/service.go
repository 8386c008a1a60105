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

// Config configures a Service.
type Config struct {
	DB         *pgxpool.Pool
	Store      Store
	Writes     *idem.Store
	ServiceDID syntax.DID    // owner of the store
	MaxSize    int64         // largest size of an attachment, in bytes
	Life       time.Duration // longest life of the reservation of a completion
	Lease      time.Duration // life of that reservation without a heartbeat
	Log        *slog.Logger
	Faults     *failpoint.Set // nil means none
}

// Service stores and reads attachments.
type Service struct {
	cfg    Config
	prefix atomic.Pointer[string] // prefix of the names of objects; nil until it was read
}

// New returns a service.
func New(c Config) *Service { return &Service{cfg: c} }

// objects returns the prefix of this database's objects in the store. A second database that uses
// the same store has another prefix, so it does not take them for orphans.
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

// Status is an attachment and the numbers of the parts that the store has.
type Status struct {
	*Attachment
	There []int
	Since *time.Time // start of the running completion; nil if none is running
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
