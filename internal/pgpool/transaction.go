package pgpool

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Transaction is a pgx.Tx that saves round trips: it sends BEGIN with the first statements, and
// COMMIT with the last statement. Like any other transaction, it is for one goroutine.
type Transaction struct {
	conn    *pgxpool.Conn
	opening *pgx.QueuedQuery // runs right after BEGIN; nil means none
	tx      pgx.Tx
	last    *pgx.QueuedQuery // runs right before COMMIT; nil means none
	ended   bool
}

var _ pgx.Tx = (*Transaction)(nil)

// ErrNotSent says that a transaction failed before its COMMIT was sent, and wrote nothing.
var ErrNotSent = errors.New("the transaction was not committed")

// NewTransaction returns a transaction on conn. The transaction releases conn when it ends. It
// begins with its first statement. Right after BEGIN, in the same round trip, it runs opening,
// unless opening is "".
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

// Query implements pgx.Tx. As the first statement of a transaction it costs a second round trip,
// because its rows are read after the batch is closed.
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

// batchRow is the row of a batch with one query. Scan reads it.
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
		_ = t.Rollback(ctx) // the last statement may have failed; the pool closes a connection that cannot roll back
	}
	return err
}

// Rollback implements pgx.Tx.
func (t *Transaction) Rollback(ctx context.Context) error {
	if t.ended {
		return pgx.ErrTxClosed
	}
	defer t.end()
	if t.conn.Conn().IsClosed() || t.conn.Conn().PgConn().TxStatus() == 'I' {
		return nil // the transaction has not begun, or the server has ended it
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
func (t *Transaction) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	rows pgx.CopyFromSource) (int64, error) {
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
