package pgpool

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Transaction is a pgx.Tx that saves round trips: BEGIN is sent with the first statements, and
// COMMIT with the last one. It is for one goroutine, like any other transaction.
type Transaction struct {
	conn    *pgxpool.Conn
	opening *pgx.QueuedQuery // runs right after BEGIN; nil: none
	tx      pgx.Tx
	last    *pgx.QueuedQuery // runs right before COMMIT; nil: none
	ended   bool
}

var _ pgx.Tx = (*Transaction)(nil)

// ErrNotSent says that a statement was not sent because the driver cannot encode its parameters.
var ErrNotSent = errors.New("the parameters of a statement cannot be encoded")

// NewTransaction returns a transaction on conn, which it releases when it ends. It begins with its
// first statement. Right after BEGIN, in the same round trip, it runs opening, unless that is "".
func NewTransaction(conn *pgxpool.Conn, opening string, args ...any) *Transaction {
	t := &Transaction{conn: conn}
	if opening != "" {
		t.opening = &pgx.QueuedQuery{SQL: opening, Arguments: args}
	}
	return t
}

// begin sends BEGIN in a round trip of its own, unless the transaction has begun.
func (t *Transaction) begin(ctx context.Context) error {
	switch {
	case t.ended:
		return pgx.ErrTxClosed
	case t.tx != nil:
		return nil
	}
	return t.SendBatch(ctx, &pgx.Batch{}).Close()
}

// SendBatch implements pgx.Tx. The first batch begins the transaction.
func (t *Transaction) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	switch {
	case t.ended:
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	case t.tx != nil:
		return t.tx.SendBatch(ctx, b)
	}
	whole := &pgx.Batch{}
	whole.BeginTx(pgx.TxOptions{})
	if t.opening != nil {
		whole.QueuedQueries = append(whole.QueuedQueries, t.opening)
	}
	own := whole.Len()
	whole.QueuedQueries = append(whole.QueuedQueries, b.QueuedQueries...)
	results := t.conn.SendBatch(ctx, whole)
	t.tx = results.Tx()
	for range own {
		if _, err := results.Exec(); err != nil {
			return results // its methods return the same error again
		}
	}
	return results
}

// Exec implements pgx.Tx.
func (t *Transaction) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if t.tx != nil && !t.ended {
		return t.tx.Exec(ctx, sql, args...)
	}
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	results := t.SendBatch(ctx, b)
	tag, err = results.Exec()
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return tag, err
}

// Query implements pgx.Tx. As the first statement it costs a second round trip: its rows are read
// after the batch is closed.
func (t *Transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.tx.Query(ctx, sql, args...)
}

// QueryRow implements pgx.Tx.
func (t *Transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.tx != nil && !t.ended {
		return t.tx.QueryRow(ctx, sql, args...)
	}
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	return batchRow{t.SendBatch(ctx, b)}
}

// batchRow is the row of a batch with one query. It is read by Scan.
type batchRow struct{ pgx.BatchResults }

func (r batchRow) Scan(dest ...any) error {
	err := r.QueryRow().Scan(dest...)
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	return err
}

// ExecLast sets the statement that Commit sends together with COMMIT.
func (t *Transaction) ExecLast(sql string, args ...any) {
	t.last = &pgx.QueuedQuery{SQL: sql, Arguments: args}
}

// Commit implements pgx.Tx.
func (t *Transaction) Commit(ctx context.Context) error {
	if t.ended {
		return pgx.ErrTxClosed
	}
	if t.tx == nil && t.last == nil {
		t.end()
		return nil
	}
	b := &pgx.Batch{}
	if t.last != nil {
		b.QueuedQueries = append(b.QueuedQueries, t.last)
	}
	b.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() != "COMMIT" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	err := t.SendBatch(ctx, b).Close()
	if err == nil {
		t.end()
	} else {
		_ = t.Rollback(ctx) // the last statement has possibly failed; the pool closes a connection that cannot roll back
	}
	return err
}

// CommitAfter sends the queries of batch and COMMIT, and waits for the server once. If before is not
// nil, it is called between the two, once the server has run the queries, and the server is waited
// for twice. In between the session is then idle in a transaction, and
// idle_in_transaction_session_timeout holds, should this process stop there. An error of before or of
// a query rolls the transaction back. The functions of the queries are called after COMMIT was sent,
// so they must only read results: their errors come too late to roll anything back. If the
// transaction has not begun, BEGIN goes along with the queries.
func (t *Transaction) CommitAfter(ctx context.Context, batch *pgx.Batch, before func() error) error {
	if t.ended {
		return pgx.ErrTxClosed
	}
	queries := batch.QueuedQueries
	if t.tx == nil {
		opening := []*pgx.QueuedQuery{{SQL: "begin"}}
		if t.opening != nil {
			opening = append(opening, t.opening)
		}
		queries = append(opening, queries...)
	}
	err := t.sendAndCommit(ctx, queries, before)
	if err == nil {
		t.end()
	} else {
		_ = t.Rollback(ctx) // the pool closes a connection that cannot roll back
	}
	return err
}

func (t *Transaction) sendAndCommit(ctx context.Context, queries []*pgx.QueuedQuery, before func() error) error {
	conn := t.conn.Conn()
	statements := make([]*pgconn.StatementDescription, len(queries))
	for i, q := range queries {
		var err error
		if statements[i], err = conn.Prepare(ctx, q.SQL, q.SQL); err != nil { // once for each connection
			return err
		}
	}
	pipeline := conn.PgConn().StartPipeline(ctx)
	results := &pipelineResults{conn.TypeMap(), pipeline}
	err := queue(conn, pipeline, queries, statements)
	if err == nil && before != nil {
		err = results.wait(queries)
		if err == nil {
			err = before()
		}
		queries = nil
	}
	if err == nil {
		pipeline.SendQueryParams("commit", nil, nil, nil, nil)
	}
	if !conn.IsClosed() { // the driver is ending a closed one in the background, and panics if both send
		if syncErr := pipeline.Sync(); err == nil {
			err = syncErr
		}
	}
	if err == nil {
		err = results.receive(queries)
	}
	if err == nil {
		err = results.committed()
	}
	if closeErr := pipeline.Close(); err == nil {
		err = closeErr
	}
	return err
}

// queue queues the queries, without COMMIT.
func queue(conn *pgx.Conn, pipeline *pgconn.Pipeline, queries []*pgx.QueuedQuery, statements []*pgconn.StatementDescription) error {
	var values pgx.ExtendedQueryBuilder
	for i, q := range queries {
		if err := values.Build(conn.TypeMap(), statements[i], q.Arguments); err != nil {
			return fmt.Errorf("%w: %w", ErrNotSent, err)
		}
		pipeline.SendQueryStatement(statements[i], values.ParamValues, values.ParamFormats, values.ResultFormats)
	}
	return nil
}

// pipelineResults are the results of the queries of a pipeline, for the functions of queued queries.
type pipelineResults struct {
	types    *pgtype.Map
	pipeline *pgconn.Pipeline
}

// wait waits until the server has run the queries, and reads their results.
func (r *pipelineResults) wait(queries []*pgx.QueuedQuery) error {
	if err := r.pipeline.Sync(); err != nil {
		return err
	}
	if err := r.receive(queries); err != nil {
		return err
	}
	_, err := r.pipeline.GetResults() // of the Sync
	return err
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

// committed reads the result of COMMIT.
func (r *pipelineResults) committed() error {
	tag, err := r.Exec()
	if err == nil && tag.String() != "COMMIT" {
		err = pgx.ErrTxCommitRollback
	}
	return err
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

// Rollback implements pgx.Tx.
func (t *Transaction) Rollback(ctx context.Context) error {
	if t.ended {
		return pgx.ErrTxClosed
	}
	defer t.end()
	if t.conn.Conn().IsClosed() || t.conn.Conn().PgConn().TxStatus() == 'I' {
		return nil // not begun, or the server has ended it already
	}
	if t.tx == nil {
		_, err := t.conn.Exec(ctx, "rollback")
		return err
	}
	return t.tx.Rollback(ctx)
}

// end releases the connection. The pool closes it if the transaction is still open.
func (t *Transaction) end() {
	t.ended = true
	t.conn.Release()
}

// Begin implements pgx.Tx.
func (t *Transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.tx.Begin(ctx)
}

// CopyFrom implements pgx.Tx.
func (t *Transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.begin(ctx); err != nil {
		return 0, err
	}
	return t.tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare implements pgx.Tx.
func (t *Transaction) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.tx.Prepare(ctx, name, sql)
}

// LargeObjects implements pgx.Tx. It is not supported.
func (t *Transaction) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

// Conn implements pgx.Tx.
func (t *Transaction) Conn() *pgx.Conn { return t.conn.Conn() }

// SendTx runs the queries of batch in one transaction and one round trip, with before as in
// [Transaction.CommitAfter].
func SendTx(ctx context.Context, db *pgxpool.Pool, batch *pgx.Batch, before func() error) error {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return err
	}
	return NewTransaction(conn, "").CommitAfter(ctx, batch, before)
}
