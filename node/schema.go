package node

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/migrations"
)

const (
	schemaInterval = 2 * time.Second
	schemaTimeout  = time.Second // of one check
)

// schemaWatch checks whether the database answers, and whether this server can serve with its
// schema. Another server or an operator can change the schema at any time.
type schemaWatch struct {
	db     *pgxpool.Pool
	binary uint // the newest migration that this server knows
	log    *slog.Logger
	now    atomic.Pointer[string] // the fault, for the readiness; "" means none

	logged string // the fault of the schema that was logged last; owned by RunOnce
}

func newSchemaWatch(db *pgxpool.Pool, binary uint, log *slog.Logger) *schemaWatch {
	w := &schemaWatch{db: db, binary: binary, log: log}
	w.now.Store(new("the schema was not checked yet"))
	return w
}

// fault returns why the server cannot serve, or "". It is at most two seconds old.
func (w *schemaWatch) fault() string { return *w.now.Load() }

// RunOnce checks once, and logs what has changed. A fault is not an error of RunOnce. Only one
// goroutine may call it.
func (w *schemaWatch) RunOnce(ctx context.Context) error {
	looking, cancel := context.WithTimeout(ctx, schemaTimeout)
	defer cancel()
	state, err := migrations.Read(looking, w.db)
	if ctx.Err() != nil {
		return nil // the server ends
	}
	if err != nil { // outageLog logs it
		w.now.Store(new("the database cannot be reached"))
		return nil
	}
	fault := ""
	if err := state.Serves(w.binary); err != nil {
		fault = err.Error()
	}
	w.now.Store(&fault)
	switch {
	case fault == w.logged:
	case fault == "":
		w.log.InfoContext(ctx, "ready again")
	default:
		w.log.WarnContext(ctx, "not ready", "error", fault)
	}
	w.logged = fault
	return nil
}
