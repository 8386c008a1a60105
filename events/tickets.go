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

// ErrInvalidTicket says that a ticket is unknown, used, expired, or for another method.
var ErrInvalidTicket = errors.New("the ticket is not valid")

const (
	ticketLife  = time.Minute
	maxTickets  = 100  // unused tickets of one DID
	ticketBatch = 1000 // rows of one transaction of Sweep
)

// Tickets issues and redeems tickets. A client that cannot send an Authorization header shows a
// ticket instead. A ticket opens one subscription of one person. All nodes share the table
// subscription_tickets, which stores only hashes.
type Tickets struct{ db *pgxpool.Pool }

// NewTickets returns the tickets stored in db.
func NewTickets(db *pgxpool.Pool) *Tickets { return &Tickets{db} }

// Issue returns a ticket with which did can call the method scope once until it expires. If the DID
// has maxTickets already, its oldest ones are deleted. Tickets issued at the same moment can exceed
// that number for a moment.
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

// Owner returns the DID of a ticket, which it leaves as it is. Errors besides the database's:
// ErrInvalidTicket.
func (t *Tickets) Owner(ctx context.Context, ticket, scope string) (did syntax.DID, err error) {
	err = t.db.QueryRow(ctx, `
		SELECT did FROM subscription_tickets WHERE hash = $1 AND scope = $2 AND expires_at > clock_timestamp()`,
		hashOf(ticket), scope).Scan(&did)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrInvalidTicket
	}
	if err != nil {
		return "", fmt.Errorf("read a ticket: %w", err)
	}
	return did, nil
}

// Redeem deletes a ticket and returns its DID. If several requests use the ticket at once, on any
// nodes, the row lock lets only one of them delete the row. A ticket for another method is not
// deleted. Errors besides the database's: ErrInvalidTicket.
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
