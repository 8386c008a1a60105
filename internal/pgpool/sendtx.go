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
// queries. An error of before or of a query rolls the transaction back. The functions of the
// queries are called before before is called, or after the Sync was sent. These functions must only
// read results, because their errors may come too late to roll anything back.
//
// If [OutcomeUnknown] of the error is true, the transaction may be committed.
func SendTx(ctx context.Context, db *pgxpool.Pool, batch *pgx.Batch, before func() error) error {
	return ReadThenWrite(ctx, db, batch, Writes{}, before)
}

// Writes are the queries of the second round trip of a transaction.
type Writes struct {
	SQL   []string         // all statements that Queue can queue
	Queue func(*pgx.Batch) // called when the results of the first queries have been read
}

// ReadThenWrite runs a transaction of two round trips, just as SendTx runs one of one round trip.
// It first sends the queries of read, then the queries that writes queues. After an error before
// the Sync is sent, nothing was written, and [OutcomeUnknown] is false.
func ReadThenWrite(ctx context.Context, db *pgxpool.Pool, read *pgx.Batch, writes Writes, before func() error) error {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	defer conn.Release()                // the pool closes a connection that is in a transaction or was lost
	ctx = tracing.StartBatch(ctx, read) // a pipeline does not call the connection's tracer
	err = sendTx(ctx, conn.Conn(), read.QueuedQueries, writes, before)
	tracing.EndStatement(ctx, err)
	return err
}

func sendTx(ctx context.Context, conn *pgx.Conn, queries []*pgx.QueuedQuery, writes Writes, before func() error) error {
	p := &pipeline{types: conn.TypeMap(),
		statements: make(map[string]*pgconn.StatementDescription, len(queries)+len(writes.SQL))}
	for _, q := range queries {
		if err := p.prepare(ctx, conn, q.SQL); err != nil {
			return fmt.Errorf("%w: %w", ErrNotSent, err)
		}
	}
	for _, sql := range writes.SQL {
		if err := p.prepare(ctx, conn, sql); err != nil {
			return fmt.Errorf("%w: %w", ErrNotSent, err)
		}
	}
	first, err := p.encode(queries)
	if err != nil {
		return err
	}
	p.Pipeline = conn.PgConn().StartPipeline(ctx)
	p.send(queries, first)
	if writes.Queue != nil {
		if err = p.flush(queries); err == nil {
			batch := &pgx.Batch{}
			writes.Queue(batch)
			queries = batch.QueuedQueries
			var second *parameters
			if second, err = p.encode(queries); err == nil {
				p.send(queries, second)
			}
		}
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrNotSent, err)
		}
	}
	if before != nil && err == nil {
		if err = p.flush(queries); err == nil {
			err = before()
		}
		queries = nil
	}
	if !conn.IsClosed() { // the driver is ending a closed connection in the background, and panics if both send
		if err != nil {
			p.SendQueryParams("rollback", nil, nil, nil, nil) // otherwise the Sync commits
		}
		if syncErr := p.Sync(); err == nil {
			err = syncErr
		}
	}
	if err == nil {
		err = p.receive(queries)
	}
	if err == nil {
		_, err = p.GetResults() // result of the Sync
	}
	if closeErr := p.Close(); err == nil {
		err = closeErr
	}
	return err
}

// pipeline sends queries and receives their results.
type pipeline struct {
	*pgconn.Pipeline
	types      *pgtype.Map
	statements map[string]*pgconn.StatementDescription // by SQL
}

// prepare prepares a statement, once for each connection.
func (p *pipeline) prepare(ctx context.Context, conn *pgx.Conn, sql string) (err error) {
	p.statements[sql], err = conn.Prepare(ctx, sql, sql)
	return err
}

// encode encodes the parameters of queries. send releases them.
func (p *pipeline) encode(queries []*pgx.QueuedQuery) (*parameters, error) {
	encoded := parametersPool.Get().(*parameters)
	for _, q := range queries {
		if err := encoded.add(p.types, p.statements[q.SQL], q.Arguments); err != nil {
			encoded.release()
			return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
		}
	}
	return encoded, nil
}

func (p *pipeline) send(queries []*pgx.QueuedQuery, encoded *parameters) {
	defer encoded.release()
	values, formats := encoded.values, encoded.formats
	for _, q := range queries { // the driver copies the values
		s := p.statements[q.SQL]
		n := len(s.ParamOIDs)
		p.SendQueryStatement(s, values[:n], formats[:n], resultFormats(p.types, s))
		values, formats = values[n:], formats[n:]
	}
}

// flush sends the queries, waits until the server has run them, and reads their results.
func (p *pipeline) flush(queries []*pgx.QueuedQuery) error {
	p.SendFlushRequest()
	if err := p.Flush(); err != nil {
		return err
	}
	return p.receive(queries)
}

// receive reads the results of the queries.
func (p *pipeline) receive(queries []*pgx.QueuedQuery) error {
	for _, q := range queries {
		if q.Fn != nil {
			if err := q.Fn(results{p}); err != nil {
				return err
			}
		} else if _, err := (results{p}).Exec(); err != nil {
			return err
		}
	}
	return nil
}

func (p *pipeline) next() (*pgconn.ResultReader, error) {
	got, err := p.GetResults()
	if err != nil {
		return nil, err
	}
	rows, ok := got.(*pgconn.ResultReader)
	if !ok {
		return nil, fmt.Errorf("the server answered with %T", got)
	}
	return rows, nil
}

// results are the results of a pipeline, for the functions of queued queries. It is a separate
// type, because methods of pgx.BatchResults have the names of other methods of the pipeline.
type results struct{ *pipeline }

// Exec implements pgx.BatchResults.
func (r results) Exec() (pgconn.CommandTag, error) {
	rows, err := r.next()
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return rows.Close()
}

// Query implements pgx.BatchResults. The rows are never nil.
func (r results) Query() (pgx.Rows, error) {
	reader, err := r.next()
	if err != nil {
		return failedRows{err: err}, err
	}
	return pgx.RowsFromResultReader(r.types, reader), nil
}

// QueryRow implements pgx.BatchResults.
func (r results) QueryRow() pgx.Row {
	rows, _ := r.Query() // Scan returns the error
	return oneRow{rows}
}

// Close implements pgx.BatchResults. The transaction closes the pipeline.
func (r results) Close() error { return nil }

// Tx implements pgx.BatchResults.
func (r results) Tx() pgx.Tx { return nil }

// failedRows are the rows of a query that failed.
type failedRows struct {
	pgx.Rows // nil
	err      error
}

func (failedRows) Next() bool   { return false }
func (failedRows) Close()       {}
func (f failedRows) Err() error { return f.err }

// oneRow is a row from rows that have no other row.
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
