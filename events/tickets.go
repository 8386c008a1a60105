package events

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrInvalidTicket says that a ticket is unknown, has been used, has expired, or opens something else.
var ErrInvalidTicket = errors.New("the ticket is not valid")

const (
	ticketLife  = time.Minute
	maxTickets  = 100 // that one DID has not used
	ticketBatch = 1000
)

// Tickets are what a client shows instead of a token where it can send no header: each opens one subscription of one person. The table
// subscription_tickets, which all nodes share, knows their hashes alone.
type Tickets struct{ db *pgxpool.Pool }

// NewTickets returns the tickets in db, which the caller owns.
func NewTickets(db *pgxpool.Pool) *Tickets { return &Tickets{db} }

// Issue returns a ticket with which did may call the method scope once until it expires. The oldest tickets of a DID that has too many
// give way; those that are issued at the same moment may be more for that moment.
func (t *Tickets) Issue(ctx context.Context, did syntax.DID, scope string) (ticket string, expires time.Time, err error) {
	var secret [32]byte
	rand.Read(secret[:]) // never fails
	ticket = base64.RawURLEncoding.EncodeToString(secret[:])
	err = t.db.QueryRow(ctx, `
		WITH outdated AS (
			DELETE FROM subscription_tickets WHERE hash IN (
				SELECT hash FROM subscription_tickets
				WHERE hash IN (SELECT hash FROM subscription_tickets WHERE did = $2 ORDER BY expires_at DESC OFFSET $5 - 1)
				FOR UPDATE SKIP LOCKED)
		)
		INSERT INTO subscription_tickets (hash, did, scope, expires_at)
		VALUES ($1, $2, $3, date_trunc('milliseconds', clock_timestamp() + $4::interval))
		RETURNING expires_at`, hashOf(ticket), did, scope, ticketLife, maxTickets).Scan(&expires)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("issue a ticket: %w", err)
	}
	return ticket, expires, nil
}

// Redeem uses a ticket up and returns whose it was. The row lock decides: of all who come with it, to any node, one gets its row. A ticket
// that opens something else is not used up. Errors besides the database's: ErrInvalidTicket.
func (t *Tickets) Redeem(ctx context.Context, ticket, scope string) (did syntax.DID, err error) {
	err = t.db.QueryRow(ctx, `
		DELETE FROM subscription_tickets WHERE hash = $1 AND scope = $2 AND expires_at > clock_timestamp()
		RETURNING did`, hashOf(ticket), scope).Scan(&did)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrInvalidTicket
	}
	if err != nil {
		return "", fmt.Errorf("redeem a ticket: %w", err)
	}
	return did, nil
}

// Sweep deletes expired tickets, in bounded batches.
func (t *Tickets) Sweep(ctx context.Context) error {
	for {
		tag, err := t.db.Exec(ctx, `
			DELETE FROM subscription_tickets WHERE hash IN (
				SELECT hash FROM subscription_tickets WHERE expires_at <= now() LIMIT $1 FOR UPDATE SKIP LOCKED)`, ticketBatch)
		if err != nil {
			return fmt.Errorf("delete expired tickets: %w", err)
		}
		if tag.RowsAffected() < ticketBatch {
			return nil
		}
	}
}

func hashOf(ticket string) []byte {
	hash := sha256.Sum256([]byte(ticket))
	return hash[:]
}
