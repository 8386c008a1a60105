package idem

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// UsedKey names the record of a key.
type UsedKey struct {
	Caller, NSID, Scope, Key string
}

// Retire retires keys in the rows that carry them. Some writes store their key in the row that they
// insert. A unique index there refuses a second row, even if the record is gone. Retire runs in the
// transaction that ends the records, so that a row's key is in use exactly as long as its record.
// Afterwards the keys can be used again.
type Retire func(ctx context.Context, tx pgx.Tx, keys []UsedKey) error

// WithRetire sets the function that retires a key when the key is used again after its record's
// lifetime.
func WithRetire(retire Retire) Option {
	return func(s *Store) { s.retire = retire }
}

func noRows(context.Context, pgx.Tx, []UsedKey) error { return nil }

// ErrKeyTaken says that a row has the key, although the key has no record. The first answer is
// lost, and the write was not done again.
var ErrKeyTaken = errors.New("the idempotency key belongs to an earlier request, whose answer is lost: " +
	"read what that request did, and use a new key")

// keyTaken reports whether a unique index on an owner and its keys refused a row.
func keyTaken(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "23505" &&
		strings.HasSuffix(refused.ConstraintName, "_idempotency_key")
}
