package pgpool

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/tracing"
)

// SendTx runs the queries of batch in one transaction and one round trip. There is no BEGIN and no
// COMMIT: queries that are sent together are one transaction, which the Sync message at their end
// commits (PostgreSQL, "Pipelining"). Each query has a snapshot of its own.
//
// If before is not nil, it is called between the queries and the Sync, once the server has run the
// queries. An error of before or of a query rolls the transaction back. The functions of the queries
// are called after the Sync was sent, or before before is called. They must only read results: their
// errors may come too late to roll anything back.
//
// If [OutcomeUnknown] of the error, the transaction was possibly committed.
func SendTx(ctx context.Context, db *pgxpool.Pool, batch *pgx.Batch, before func() error) error {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()                 // the pool closes a connection that is in a transaction or was lost
	ctx = tracing.StartBatch(ctx, batch) // a pipeline does not call the connection's tracer
	err = sendTx(ctx, conn.Conn(), batch.QueuedQueries, before)
	tracing.EndStatement(ctx, err)
	return err
}

func sendTx(ctx context.Context, conn *pgx.Conn, queries []*pgx.QueuedQuery, before func() error) error {
	p := parametersPool.Get().(*parameters)
	defer p.release()
	statements := make([]*pgconn.StatementDescription, len(queries))
	for i, q := range queries { // before anything is sent
		var err error
		if statements[i], err = conn.Prepare(ctx, q.SQL, q.SQL); err != nil { // once for each connection
			return err
		}
		if err := p.add(conn.TypeMap(), statements[i], q.Arguments); err != nil {
			return fmt.Errorf("%w: %w", ErrNotSent, err)
		}
	}
	pipeline := conn.PgConn().StartPipeline(ctx)
	values, formats := p.values, p.formats
	for _, s := range statements { // the driver copies the values
		n := len(s.ParamOIDs)
		pipeline.SendQueryStatement(s, values[:n], formats[:n], resultFormats(conn.TypeMap(), s))
		values, formats = values[n:], formats[n:]
	}
	results := &pipelineResults{conn.TypeMap(), pipeline}
	var err error
	if before != nil {
		if err = results.flush(queries); err == nil {
			err = before()
		}
		queries = nil
	}
	if !conn.IsClosed() { // the driver is ending a closed one in the background, and panics if both send
		if err != nil {
			pipeline.SendQueryParams("rollback", nil, nil, nil, nil) // else the Sync commits
		}
		if syncErr := pipeline.Sync(); err == nil {
			err = syncErr
		}
	}
	if err == nil {
		err = results.receive(queries)
	}
	if err == nil {
		_, err = pipeline.GetResults() // of the Sync
	}
	if closeErr := pipeline.Close(); err == nil {
		err = closeErr
	}
	return err
}

// pipelineResults are the results of the queries of a pipeline, for the functions of queued queries.
type pipelineResults struct {
	types    *pgtype.Map
	pipeline *pgconn.Pipeline
}

// flush waits until the server has run the queries, and reads their results.
func (r *pipelineResults) flush(queries []*pgx.QueuedQuery) error {
	r.pipeline.SendFlushRequest()
	if err := r.pipeline.Flush(); err != nil {
		return err
	}
	return r.receive(queries)
}

// receive reads the results of the queries.
func (r *pipelineResults) receive(queries []*pgx.QueuedQuery) error {
	for _, q := range queries {
		if q.Fn != nil {
			if err := q.Fn(r); err != nil {
				return err
			}
		} else if _, err := r.Exec(); err != nil {
			return err
		}
	}
	return nil
}

func (r *pipelineResults) next() (*pgconn.ResultReader, error) {
	results, err := r.pipeline.GetResults()
	if err != nil {
		return nil, err
	}
	rows, ok := results.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("the server answered with %T", results)
	}
	return rows, nil
}

// Exec implements pgx.BatchResults.
func (r *pipelineResults) Exec() (pgconn.CommandTag, error) {
	rows, err := r.next()
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return rows.Close()
}

// Query implements pgx.BatchResults. The rows are never nil.
func (r *pipelineResults) Query() (pgx.Rows, error) {
	reader, err := r.next()
	if err != nil {
		return failedRows{err: err}, err
	}
	return pgx.RowsFromResultReader(r.types, reader), nil
}

// QueryRow implements pgx.BatchResults.
func (r *pipelineResults) QueryRow() pgx.Row {
	rows, _ := r.Query() // Scan returns the error
	return oneRow{rows}
}

// Close implements pgx.BatchResults. The transaction closes the pipeline.
func (r *pipelineResults) Close() error { return nil }

// Tx implements pgx.BatchResults.
func (r *pipelineResults) Tx() pgx.Tx { return nil }

// failedRows are the rows of a query that failed.
type failedRows struct {
	pgx.Rows // nil
	err      error
}

func (failedRows) Next() bool   { return false }
func (failedRows) Close()       {}
func (f failedRows) Err() error { return f.err }

// oneRow is the only row of rows.
type oneRow struct{ rows pgx.Rows }

func (r oneRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
