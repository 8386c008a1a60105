package tracing

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Statements makes spans for a pool's statements, and for the waits for its connections, below the
// spans of their contexts. It implements the tracers of pgx and pgxpool.
type Statements struct{}

var (
	_ pgx.QueryTracer       = Statements{}
	_ pgx.BatchTracer       = Statements{}
	_ pgxpool.AcquireTracer = Statements{}
)

// TraceQueryStart implements pgx.QueryTracer.
func (Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !Of(ctx).Traced() {
		return ctx
	}
	return startStatements(ctx, []string{data.SQL})
}

// TraceQueryEnd implements pgx.QueryTracer.
func (Statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	EndStatement(ctx, data.Err)
}

// TraceBatchStart implements pgx.BatchTracer.
func (Statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	return StartBatch(ctx, data.Batch)
}

// TraceBatchQuery implements pgx.BatchTracer.
func (Statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (Statements) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	EndStatement(ctx, data.Err)
}

// TraceAcquireStart implements pgxpool.AcquireTracer.
func (Statements) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool,
	_ pgxpool.TraceAcquireStartData) context.Context {
	return start(ctx, "connection")
}

// TraceAcquireEnd implements pgxpool.AcquireTracer.
func (Statements) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	EndStatement(ctx, data.Err)
}

// statement is the context key of a span that the tracer began. If a context has a span without
// this key, the tracer did not begin it, and must not end it.
type statement struct{}

func start(ctx context.Context, name string) context.Context {
	ctx, s := StartCall(ctx, name)
	if !s.Traced() {
		return ctx
	}
	return context.WithValue(ctx, statement{}, s)
}

// StartBatch begins the span of statements that share a round trip. EndStatement ends it.
func StartBatch(ctx context.Context, batch *pgx.Batch) context.Context {
	if !Of(ctx).Traced() {
		return ctx
	}
	var all []string
	for _, q := range batch.QueuedQueries {
		all = append(all, q.SQL)
	}
	return startStatements(ctx, all)
}

func startStatements(ctx context.Context, sql []string) context.Context {
	ctx = start(ctx, "statement")
	s := Of(ctx)
	s.Text("db.system.name", "postgresql")
	s.Number("db.operation.batch.size", len(sql))
	var begins []string
	for _, text := range sql {
		begins = append(begins, beginning(text))
	}
	s.Text("db.query.summary", strings.Join(begins, "; "))
	return ctx
}

// EndStatement ends the span that StartBatch began, if there is one.
func EndStatement(ctx context.Context, err error) {
	s, ok := ctx.Value(statement{}).(Span)
	if !ok {
		return
	}
	var fromServer *pgconn.PgError
	switch {
	case errors.As(err, &fromServer):
		s.Failed(fromServer.Code)
	case err != nil:
		s.Failed("connection")
	}
	s.End()
}

// maxBeginning is how many bytes of a statement a span has.
const maxBeginning = 80

// beginning returns the beginning of a statement's text, on one line and without comments. The text
// contains no values, because these are parameters.
func beginning(sql string) string {
	var words []string
	for line := range strings.Lines(sql) {
		code, _, _ := strings.Cut(line, "--")
		words = append(words, strings.Fields(code)...)
	}
	text := strings.Join(words, " ")
	return text[:min(len(text), maxBeginning)]
}
