// Package erasure removes everything that this service stores about an account, or replaces its DID
// by a tombstone where others need the row.
//
// An erasure is a job: a row of the table erasures. Worker takes the job from step to step. Each
// batch of a step is a transaction that also updates the row, so that a killed node loses nothing
// and repeats nothing. The steps call functions of the packages that own the tables.
package erasure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/tombstone"
	"mlsd/people/accounts"
)

// Who asks for an erasure, besides an operator.
const (
	ByAccount = "account" // the account's owner
	ByNetwork = "network" // the account was deleted in the network
	ByHome    = "home"    // the service that the account has chosen as its home
)

// ErrNotFound says that there is no erasure with an id.
var ErrNotFound = errors.New("there is no such erasure")

// States of an erasure.
const (
	Running  = "running"
	Finished = "finished"
)

// Erasure is a job and its progress.
type Erasure struct {
	ID      uuid.UUID        `json:"id"`
	State   string           `json:"state"`
	Step    string           `json:"step"`    // the running step
	Pass    int              `json:"pass"`    // if a search finds something, another pass begins
	Counts  map[string]int64 `json:"counts"`  // rows that were deleted or changed, by table
	Remains map[string]int64 `json:"remains"` // rows that the last search found, by table
	// Services says, for each service where the account had accepted an invitation, what came of
	// the request to erase it there: Told, Refused or NotReached.
	Services    map[syntax.DID]string `json:"services,omitempty"`
	Failures    int                   `json:"failures"`
	RequestedBy string                `json:"requestedBy"`
	BegunAt     time.Time             `json:"begunAt"`
	FinishedAt  *time.Time            `json:"finishedAt,omitempty"`
}

// Store creates and reads jobs.
type Store struct {
	accounts *accounts.Store
	settle   time.Duration
}

// NewStore returns a store.
func NewStore(a *accounts.Store) *Store { return &Store{accounts: a, settle: settle} }

// settle is the time from the beginning of an erasure to its first batch. By then the nodes refuse
// the account, and most of its running requests have ended.
const settle = 5 * time.Second

// Begin creates a job, and makes every node refuse the account. If a job of the account is running,
// Begin returns that job.
func (s *Store) Begin(ctx context.Context, tx pgx.Tx, did syntax.DID, requestedBy, reason string) (id uuid.UUID,
	begun bool, err error) {
	fresh, err := uuid.NewV7()
	if err != nil {
		return id, false, fmt.Errorf("make the id of an erasure: %w", err)
	}
	if err := s.accounts.Lock(ctx, tx); err != nil {
		return id, false, err
	}
	for {
		tag, err := tx.Exec(ctx, `
			INSERT INTO erasures (id, did, salt, requested_by, reason, not_before, begun_at)
			VALUES ($1, $2, $3, $4, $5, clock_timestamp() + $6::interval, clock_timestamp())
			ON CONFLICT (did) WHERE state = 'running' DO NOTHING`, fresh, did, tombstone.NewSalt(), requestedBy, reason,
			s.settle)
		if err != nil {
			return id, false, fmt.Errorf("begin an erasure: %w", err)
		}
		if tag.RowsAffected() == 1 {
			return fresh, true, s.accounts.BeginErasure(ctx, tx, did)
		}
		err = tx.QueryRow(ctx, `SELECT id FROM erasures WHERE did = $1 AND state = 'running'`, did).Scan(&id)
		switch {
		case errors.Is(err, pgx.ErrNoRows): // the job has ended between the two statements
		case err != nil:
			return id, false, fmt.Errorf("look for the erasure that is running: %w", err)
		default:
			return id, false, nil
		}
	}
}

// BeginForHome begins the erasure of an account at the request of its home, another service. If the
// account was never in a convo here, no job is created. The caller has checked that home is the
// account's home.
func (s *Store) BeginForHome(ctx context.Context, tx pgx.Tx, did, home syntax.DID) error {
	_, known, err := convos.NextOf(ctx, tx, tombstone.Person{DID: did}, uuid.Nil)
	if err != nil || !known {
		return err
	}
	_, _, err = s.Begin(ctx, tx, did, ByHome, home.String()+" erases it")
	return err
}

// Get returns a job. Error: ErrNotFound.
func (s *Store) Get(ctx context.Context, db pgpool.DB, id uuid.UUID) (e Erasure, err error) {
	err = db.QueryRow(ctx, `
		SELECT id, state, step, pass, counts, remains, services, failures, requested_by, begun_at, finished_at
		FROM erasures WHERE id = $1`, id).
		Scan(&e.ID, &e.State, &e.Step, &e.Pass, &e.Counts, &e.Remains, &e.Services, &e.Failures, &e.RequestedBy,
			&e.BegunAt, &e.FinishedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return e, ErrNotFound
	}
	return e, errs.Wrap(err, "read an erasure")
}
