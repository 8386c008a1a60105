package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/clock"
	"mlsd/migrations"
)

const (
	schemaInterval = 2 * time.Second
	schemaTimeout  = time.Second // of one check
)

// schemaWatch checks whether the database answers, whether this server can serve with its schema,
// whether it is still of this service, and how far its clock is from this node's. Another server or
// an operator can change that at any time.
type schemaWatch struct {
	db     *pgxpool.Pool
	binary uint       // the newest migration that this server knows
	own    syntax.DID // see claimed
	log    *slog.Logger
	clock  *clock.Offset // measured at each check
	local  func() time.Time
	now    atomic.Pointer[string] // the fault, for the readiness; "" means none

	logged string // the kind of fault that was logged last; owned by RunOnce
}

func newSchemaWatch(
	db *pgxpool.Pool, binary uint, own syntax.DID, log *slog.Logger, local func() time.Time,
) *schemaWatch {
	w := &schemaWatch{db: db, binary: binary, own: claimed(own), log: log, clock: &clock.Offset{}, local: local}
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
	asked := w.local()
	state, err := migrations.Read(looking, w.db)
	if ctx.Err() != nil {
		return nil // the server ends
	}
	if err != nil { // outageLog logs it
		w.now.Store(new("the database cannot be reached"))
		return nil
	}
	if !state.Now.IsZero() {
		w.clock.Measure(asked, state.Now, w.local())
	}
	fault, kind := w.clock.Fault(), "clock" // the seconds in this fault change
	if err := state.Serves(w.binary); err != nil {
		fault = err.Error()
		kind = fault
	} else if state.Service != w.own && state.Service != "" {
		fault = fmt.Sprintf("the database belongs to %s, and this node is of %q: stop it", state.Service, w.own)
		kind = fault
	} else if fault == "" {
		kind = ""
	}
	w.now.Store(&fault)
	switch {
	case kind == w.logged:
	case kind == "":
		w.log.InfoContext(ctx, "ready again")
	default:
		w.log.WarnContext(ctx, "not ready", "error", fault)
	}
	w.logged = kind
	return nil
}
