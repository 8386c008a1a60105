package idem

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// transaction is one in a caller's name: it sees the caller's records and no others, and what it changes is the caller's doing. It
// begins with its first statement and ends with its last, in the same round trips. It is for one goroutine, like any other.
type transaction struct {
	conn   *pgxpool.Conn
	caller []any // arguments of asCaller
	tx     pgx.Tx
	last   *pgx.QueuedQuery // goes with the COMMIT
	ended  bool
}

var _ pgx.Tx = (*transaction)(nil)

// newTransaction returns a transaction on a connection that it gives back when it ends.
func newTransaction(conn *pgxpool.Conn, req Request) *transaction {
	method := req.NSID[strings.LastIndexByte(req.NSID, '.')+1:]
	return &transaction{conn: conn, caller: []any{req.Caller.String(), method}}
}

// begin begins, in a round trip of its own, if nothing has yet.
func (t *transaction) begin(ctx context.Context) error {
	if t.tx != nil || t.ended {
		return nil
	}
	return t.SendBatch(ctx, &pgx.Batch{}).Close()
}

// SendBatch implements pgx.Tx. The first batch begins the transaction.
func (t *transaction) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	switch {
	case t.ended:
		return pgx.FailedBatchResults(b, pgx.ErrTxClosed)
	case t.tx != nil:
		return t.tx.SendBatch(ctx, b)
	}
	whole := &pgx.Batch{}
	whole.BeginTx(pgx.TxOptions{})
	whole.Queue(asCaller, t.caller...)
	whole.QueuedQueries = append(whole.QueuedQueries, b.QueuedQueries...)
	results := t.conn.SendBatch(ctx, whole)
	t.tx = results.Tx()
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return results // and says it again
		}
	}
	return results
}

// Exec implements pgx.Tx.
func (t *transaction) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	if t.tx != nil {
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

// Query implements pgx.Tx. It does not begin the transaction in its own round trip: its rows are read when that is over.
func (t *transaction) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	if t.ended {
		return nil, pgx.ErrTxClosed
	}
	return t.tx.Query(ctx, sql, args...)
}

// QueryRow implements pgx.Tx.
func (t *transaction) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.tx != nil {
		return t.tx.QueryRow(ctx, sql, args...)
	}
	b := &pgx.Batch{}
	b.Queue(sql, args...)
	return batchRow{t.SendBatch(ctx, b)}
}

// batchRow is the row of a batch with one query left.
type batchRow struct{ pgx.BatchResults }

func (r batchRow) Scan(dest ...any) error {
	err := r.QueryRow().Scan(dest...)
	if closeErr := r.Close(); err == nil {
		err = closeErr
	}
	return err
}

// ExecLast has a statement executed before the COMMIT, in the same round trip.
func (t *transaction) ExecLast(sql string, args ...any) {
	t.last = &pgx.QueuedQuery{SQL: sql, Arguments: args}
}

// Commit implements pgx.Tx.
func (t *transaction) Commit(ctx context.Context) error {
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
		_ = t.Rollback(ctx) // the statement before the COMMIT may have failed; what cannot be rolled back, the pool closes
	}
	return err
}

// Rollback implements pgx.Tx.
func (t *transaction) Rollback(ctx context.Context) error {
	if t.ended {
		return pgx.ErrTxClosed
	}
	defer t.end()
	if t.tx == nil || t.conn.Conn().IsClosed() || t.conn.Conn().PgConn().TxStatus() == 'I' {
		return nil // the session's end is the transaction's
	}
	return t.tx.Rollback(ctx)
}

// end gives the connection back. The pool closes it if the transaction is not over.
func (t *transaction) end() {
	t.ended = true
	t.conn.Release()
}

// Begin implements pgx.Tx.
func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.tx.Begin(ctx)
}

// CopyFrom implements pgx.Tx.
func (t *transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.begin(ctx); err != nil {
		return 0, err
	}
	return t.tx.CopyFrom(ctx, table, columns, rows)
}

// Prepare implements pgx.Tx.
func (t *transaction) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.begin(ctx); err != nil {
		return nil, err
	}
	return t.tx.Prepare(ctx, name, sql)
}

// LargeObjects implements pgx.Tx. There are none.
func (t *transaction) LargeObjects() pgx.LargeObjects { return pgx.LargeObjects{} }

// Conn implements pgx.Tx.
func (t *transaction) Conn() *pgx.Conn { return t.conn.Conn() }
