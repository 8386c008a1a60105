package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/convos"
	"mlsd/features/archive"
	"mlsd/features/erasure"
	"mlsd/features/transparency"
	"mlsd/idem"
	"mlsd/internal/failpoint"
	"mlsd/people/accounts"
	"mlsd/people/quota"
)

// The admin listener serves a method's result as JSON below /admin/. The commands mlsd admin and mlsd
// inspect print it. The pages of operator/console draw it.
//
// Functions return DIDs in full. Ask and the console shorten the DIDs. The field names of results
// are the names in the JSON, and do not change.

const (
	// maxBody is the longest body of a request, in bytes.
	maxBody = 64 << 10
	// Limit is how long one call may take. The rest of a longer job continues with the next call,
	// or in the background.
	Limit = 10 * time.Minute
	// answerTimeout is how long the client may take to read the answer.
	answerTimeout = time.Minute
)

// Service serves the methods.
type Service struct{ c Config }

// Config is what a Service uses.
type Config struct {
	DB       *pgxpool.Pool // the pool for maintenance, because methods can read many rows
	Log      *slog.Logger
	Remover  *convos.Remover
	Accounts *accounts.Store
	Erasures *erasure.Store
	Changed  func()                // called after a write that changes which accounts are refused
	Wake     func()                // called after a write that has inserted events
	Heads    *transparency.Service // methods list and replace its keys
	Faults   *failpoint.Set        // of writes, by the method's name, such as account.block; can be nil

	Lifetimes idem.Lifetimes // lifetimes of idempotency records, as the settings say
	Quotas    quota.Limits   // as the settings say
}

// New returns a service.
func New(c Config) *Service { return &Service{c} }

// Handle adds a handler to the admin listener, for requests that are allowed at level.
type Handle func(pattern string, level Level, h http.Handler)

// Handle adds the methods to a listener.
func (s *Service) Handle(handle Handle) {
	for _, m := range Methods() {
		level := Read
		if m.Write {
			level = Write
		}
		handle(m.httpVerb()+" "+m.Path(), level,
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, m) }))
	}
}

// serve answers one request.
func (s *Service) serve(w http.ResponseWriter, r *http.Request, m Method) {
	c, err := m.read(w, r)
	if err != nil {
		s.writeError(w, err)
		return
	}
	s.Answer(w, r, m, c, func(out any, err error) {
		if err != nil {
			s.writeError(w, err)
			return
		}
		writeJSON(w, s.c.Log, http.StatusOK, out)
	})
}

// read reads the call from a request: from the query of a GET, or from the JSON object of a POST,
// whose values are texts.
func (m Method) read(w http.ResponseWriter, r *http.Request) (Call, error) {
	given := map[string]string{}
	if m.Write {
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&given); err != nil {
			return Call{}, BadRequest("the body must be a JSON object of texts")
		}
	} else {
		for name, values := range r.URL.Query() {
			given[name] = values[0]
		}
	}
	return m.NewCall(given)
}

// Answer makes a call for a request. If the result is an Archive, Answer writes it. Any other
// result, and any error, goes to write.
func (s *Service) Answer(w http.ResponseWriter, r *http.Request, m Method, c Call, write func(out any, err error)) {
	control := http.NewResponseController(w)
	// The listener's timeouts are too short for a large job. net/http keeps reading, to notice that
	// the client hangs up.
	if err := errors.Join(control.SetReadDeadline(time.Time{}),
		control.SetWriteDeadline(time.Now().Add(Limit+answerTimeout))); err != nil {
		s.c.Log.Warn("an admin method may be cut off", "error", err)
	}
	ctx := r.Context()
	if m.Write { // a begun write is finished even if the browser hangs up
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	out, err := s.Call(ctx, m, c)
	archive, ok := out.(Archive)
	if err != nil || !ok {
		write(out, err)
		return
	}
	w.Header().Set("Content-Type", ArchiveType)
	if err := archive.WriteTo(ctx, w); err != nil {
		s.c.Log.Error("an archive could not be written", "method", m.Name(), "error", err)
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}
}

// ArchiveType is the Content-Type of an Archive: JSON Lines.
const ArchiveType = "application/jsonl"

// Archive is a result that is written line by line, because the whole can exceed the memory.
type Archive interface {
	WriteTo(context.Context, io.Writer) error
}

// Call runs a method. A method that writes leaves a row in admin_actions, whatever its result. ctx
// should end after Limit.
func (s *Service) Call(ctx context.Context, m Method, c Call) (out any, err error) {
	if !m.Write {
		err = archive.Snapshot(ctx, s.c.DB, func(tx pgx.Tx) error {
			out, err = s.Ask(ctx, tx, m, c)
			return err
		})
		return out, err
	}
	id, err := begin(ctx, s.c.DB, m, c)
	if err != nil {
		return nil, err
	}
	out, err = s.act(ctx, m, c)
	s.c.Log.InfoContext(ctx, "an operator has acted", "action", m.Name(), "operator", c.Operator, "outcome",
		outcomeOf(err))
	return out, errors.Join(err, end(ctx, s.c.DB, id, err))
}

// Ask runs a method in the caller's transaction, which must see the rows of all callers.
func (s *Service) Ask(ctx context.Context, tx pgx.Tx, m Method, c Call) (any, error) {
	for _, p := range m.Params {
		if err := p.check(c.Params[p.Name]); err != nil {
			return nil, err
		}
	}
	out, err := m.run(ctx, s, tx, c)
	if err == nil && m.Question() && !c.flag("dids") {
		out = hideDIDs(out, c.Params[didParam.Name])
	}
	if e, known := AsError(err); known {
		return nil, e
	}
	return out, err
}

// act runs a method that writes, in a transaction of the operator. The audit log names the operator
// and the method, and row-level security lets the transaction see all records.
func (s *Service) act(ctx context.Context, m Method, c Call) (out any, err error) {
	err = pgx.BeginFunc(ctx, s.c.DB, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			SELECT set_config('mlsd.caller', $1, true), set_config('mlsd.reason', $2, true), set_config('mlsd.maintenance', 'on',
				true)`,
			"operator "+c.Operator, "admin "+c.action)
		if err != nil {
			return fmt.Errorf("act as the operator: %w", err)
		}
		if out, err = s.Ask(ctx, tx, m, c); err != nil {
			return err
		}
		return s.c.Faults.Hit(ctx, failpoint.BeforeCommit, m.Name())
	})
	if err == nil {
		err = s.c.Faults.Hit(ctx, failpoint.AfterCommit, m.Name())
	}
	if err != nil {
		return nil, err
	}
	if m.after != nil {
		return m.after(ctx, s, c, out)
	}
	return out, nil
}

// changed runs after a write that changes which accounts are refused. This node knows the change at
// once, the other nodes within a second. A convo can have got a new admin: see convos.HandOver.
func changed(_ context.Context, s *Service, _ Call, out any) (any, error) {
	s.c.Changed()
	s.c.Wake()
	return out, nil
}

// wake runs after a write that has inserted events.
func wake(_ context.Context, s *Service, _ Call, out any) (any, error) {
	s.c.Wake()
	return out, nil
}
