// Package archive reads everything that this service stores about one account, as rows of its
// tables. The operator's export and the account's own export are made from them.
//
// The package owns no table. It reads the tables of all packages, and writes none.
package archive

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/redact"
)

const (
	// batchRows is the most rows that one statement returns.
	batchRows = 100
	// window is how many rows one statement examines in a table that is read whole.
	window = 5000
	// batchBytes bounds the ciphertexts that one statement returns, in bytes. A statement always
	// returns at least one.
	batchBytes = 5_000_000
)

// Row is a row that is stored about an account.
type Row struct {
	Type string // the table, and how the row belongs to the account
	Data string // a JSON object
}

// Snapshot calls read in a read-only transaction that sees the rows of all callers, all as of one
// moment.
func Snapshot(ctx context.Context, db *pgxpool.Pool, read func(pgx.Tx) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, db, options, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('mlsd.maintenance', 'on', true)`); err != nil {
			return fmt.Errorf("prepare to read: %w", err)
		}
		return read(tx)
	})
}

// Reader reads the rows of one account.
type Reader struct {
	DID syntax.DID
	// Rows is the most rows that Read passes on. 0 means no limit.
	Rows int
	// Time bounds the time of Read, which ends once the running statement has ended. 0 means no
	// limit.
	Time time.Duration
	// Now is the clock for Time. Default: time.Now.
	Now func() time.Time
}

// Read calls yield with the rows after a position, in the order of the parts. If yield returns
// false, that row is not passed on, and Read ends. Read returns where it has ended, and whether
// there may be more rows. Each statement is bounded in the rows that it examines and returns, and
// in bytes. tx is the transaction of Snapshot.
func (r Reader) Read(ctx context.Context, tx pgx.Tx, from Position, yield func(Row) bool) (end Position, more bool,
	err error) {
	if r.Now == nil {
		r.Now = time.Now
	}
	begun, left, refused := r.Now(), r.Rows, false
	end = from
	for end.part < len(parts) {
		p := parts[end.part]
		limit := batchRows
		if r.Rows > 0 {
			limit = min(limit, left)
		}
		found, err := p.read(ctx, tx, r.DID, end.key, limit, func(key []any, data *string) bool {
			if data != nil {
				if refused = !yield(Row{p.name, *data}); refused {
					return false
				}
				left--
			}
			end.key = key
			return true
		})
		switch {
		case err != nil:
			return from, false, fmt.Errorf("export %s: %w", p.name, err)
		case refused:
			return end, true, nil
		case !found:
			end = Position{part: end.part + 1}
		}
		if r.Rows > 0 && left == 0 || r.Time > 0 && r.Now().Sub(begun) >= r.Time {
			return end, end.part < len(parts), nil
		}
	}
	return end, false, nil
}

// read runs the part's statement from after key; nil means from the beginning. It passes each row
// on with its key. data is nil for a row that only says how far the statement has read. found is
// false if there are no more rows.
func (p part) read(
	ctx context.Context, tx pgx.Tx, did syntax.DID, key []any, limit int, yield func(key []any, data *string) bool,
) (found bool, err error) {
	table, _, _ := strings.Cut(p.name, " ")
	hidden, after := redact.Hidden(table)
	args := pgx.NamedArgs{"did": did.String(), "limit": limit, "window": window, "bytes": batchBytes,
		"hidden": hidden, "hidden_after": after, "secret_answers": redact.SecretAnswers()}
	for i, k := range p.keys {
		args[k.name] = least[k.kind]
		if key != nil {
			args[k.name] = key[i]
		}
	}
	rows, err := tx.Query(ctx, p.sql, args)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for rows.Next() {
		found = true
		values, err := rows.Values()
		if err != nil {
			return false, err
		}
		last := len(values) - 1
		var data *string
		if text, is := values[last].(string); is {
			data = &text
		}
		if last != len(p.keys) {
			return false, errors.New("the statement does not return its keys and a text")
		}
		if !yield(values[:last:last], data) {
			return true, nil
		}
	}
	return found, rows.Err()
}

// Counts says how much is stored about an account.
type Counts struct {
	Devices         int64      `json:"devices"` // devices with a KeyPackage or a push target
	KeyPackages     int64      `json:"keyPackages"`
	Available       int64      `json:"keyPackagesAvailable"`
	KeyPackageBytes int64      `json:"keyPackageBytes"`
	Convos          int64      `json:"convos"`        // convos of which the account is a member
	Created         int64      `json:"convosCreated"` // convos among them that the account has created
	PendingWelcomes int64      `json:"pendingWelcomes"`
	PushTargets     int64      `json:"pushTargets"`
	PushJobs        int64      `json:"pushJobs"`
	Records         int64      `json:"records"` // idempotency records
	RecordBytes     int64      `json:"recordBytes"`
	Connected       int64      `json:"connectedDevices"`
	LastPublished   *time.Time `json:"lastKeyPackageAt,omitempty"`
	// LastWrite is the newest record that is still stored, or a message: one of the newest 100 entries
	// of the 100 convos with the newest messages.
	LastWrite        *time.Time `json:"lastWriteAt,omitempty"`
	OldestMembership *time.Time `json:"oldestMembershipAt,omitempty"`
}

// countSQL counts the rows of the DID $1.
//
//go:embed account.sql
var countSQL string

// Count counts what is stored about an account. tx must see at least the account's own records.
func Count(ctx context.Context, tx pgx.Tx, did syntax.DID) (c Counts, err error) {
	err = tx.QueryRow(ctx, countSQL, did).Scan(&c.Devices, &c.KeyPackages, &c.Available, &c.KeyPackageBytes,
		&c.LastPublished,
		&c.Convos, &c.Created, &c.OldestMembership, &c.PendingWelcomes, &c.PushTargets, &c.PushJobs,
		&c.Records, &c.RecordBytes, &c.LastWrite, &c.Connected)
	return c, errs.Wrap(err, "count what is held about an account")
}
