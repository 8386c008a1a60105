package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
)

// State is what a database says about its schema.
type State struct {
	Version uint // of the newest applied migration; 0 means none
	Dirty   bool // see ErrDirty
	// MinBinary is a migration: only an mlsd that knows it can serve. 0 means that the schema does not
	// say.
	MinBinary uint
	Now       time.Time // the database's clock; zero if the schema is empty
	// Service is the DID of the service that the database belongs to; "" means that no node has said
	// it yet.
	Service syntax.DID
}

// Read reads the state. db must not be in a transaction, because in an empty database a query of
// Read fails.
func Read(ctx context.Context, db pgpool.Queryer) (s State, err error) {
	var says bool
	// golang-migrate marked an empty schema as version -1.
	err = db.QueryRow(ctx, `
		SELECT greatest(version, 0), dirty, to_regclass('installation') IS NOT NULL, clock_timestamp()
		FROM schema_migrations`).
		Scan(&s.Version, &s.Dirty, &says, &s.Now)
	switch {
	case errors.Is(err, pgx.ErrNoRows), pgpool.Code(err) == undefinedTable:
		return State{}, nil
	case err != nil:
		return State{}, fmt.Errorf("read the version of the schema: %w", err)
	case !says:
		return s, nil
	}
	row := db.QueryRow(ctx, `SELECT min_binary, coalesce(to_jsonb(i)->>'service', '') FROM installation i`)
	if err := row.Scan(&s.MinBinary, &s.Service); err != nil {
		return State{}, fmt.Errorf("read which mlsd can serve: %w", err)
	}
	return s, nil
}

const undefinedTable = "42P01"

// VersionError means that a binary cannot serve with the schema of its database.
type VersionError struct {
	Database  uint // version of the schema
	Binary    uint // the newest migration that the binary knows
	MinBinary uint // the migration that a binary must know for this schema
}

func (e *VersionError) Error() string {
	if e.Database < e.Binary {
		return fmt.Sprintf("the database has schema version %d, and this mlsd needs version %d: run mlsd migrate up",
			e.Database, e.Binary)
	}
	return fmt.Sprintf("the database has schema version %d, which needs an mlsd that knows version %d, and this mlsd "+
		"knows version %d: start a newer mlsd",
		e.Database, e.MinBinary, e.Binary)
}

// Serves returns nil if a binary can serve with the schema. binary is the newest migration that it
// knows. Otherwise Serves returns ErrDirty or a *VersionError.
func (s State) Serves(binary uint) error {
	switch {
	case s.Dirty:
		return fmt.Errorf("%w (version %d)", ErrDirty, s.Version)
	case s.Version < binary, s.Version > binary && s.MinBinary > binary:
		return &VersionError{Database: s.Version, Binary: binary, MinBinary: s.MinBinary}
	}
	return nil
}
