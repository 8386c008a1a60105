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
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/errs"
	"mlsd/internal/worker"
)

// ErrInvalidTicket says that a ticket is unknown, used, expired, or for another method.
var ErrInvalidTicket = errors.New("the ticket is not valid: it was used, is old, or is no ticket; get a new one " +
	"with getSubscriptionTicket")

const (
	ticketLife = time.Minute
	maxTickets = 100 // most unused tickets of one DID
)

// Tickets issues and redeems tickets. A client that cannot send an Authorization header sends a
// ticket instead. A ticket opens one subscription of one person. All nodes share the table
// subscription_tickets, which stores only hashes.
type Tickets struct{ db *pgxpool.Pool }

// Holder is the person who has a ticket.
type Holder struct {
	DID syntax.DID
	// Session is the session with which the ticket was bought. It is nil if the ticket was bought
	// with a service-auth token.
	Session *HolderSession
}

// HolderSession is the session that a ticket belongs to.
type HolderSession struct {
	ID       uuid.UUID
	DeviceID string
	Expires  time.Time // when the bearer token that bought the ticket expires
}

// NewTickets returns the tickets stored in db.
func NewTickets(db *pgxpool.Pool) *Tickets { return &Tickets{db} }

// Issue returns a ticket with which its holder can call the method scope once until the ticket
// expires. If the DID has maxTickets already, Issue deletes the oldest. Tickets issued at the same
// moment can exceed maxTickets for a moment.
func (t *Tickets) Issue(ctx context.Context, to Holder, scope string) (ticket string, expires time.Time, err error) {
	var secret [32]byte
	rand.Read(secret[:]) // never fails
	ticket = base64.RawURLEncoding.EncodeToString(secret[:])
	session, device, sessionExpires := to.Session.columns()
	err = t.db.QueryRow(ctx, `
		WITH outdated AS (
			DELETE FROM subscription_tickets WHERE hash IN (
				SELECT hash FROM subscription_tickets
				WHERE hash IN (SELECT hash FROM subscription_tickets WHERE did = $2 ORDER BY expires_at DESC OFFSET $5 - 1)
				FOR UPDATE SKIP LOCKED)
		)
		INSERT INTO subscription_tickets (hash, did, scope, expires_at, session_id, device_id, session_expires_at)
		VALUES ($1, $2, $3, date_trunc('milliseconds', clock_timestamp() + $4::interval), $6, $7, $8)
		RETURNING expires_at`, hashOf(ticket), to.DID, scope, ticketLife, maxTickets, session, device,
		sessionExpires).Scan(&expires)
	return ticket, expires, errs.Wrap(err, "issue a ticket")
}

// columns returns the values for a ticket's row. They are NULL without a session.
func (s *HolderSession) columns() (id *uuid.UUID, device *string, expires *time.Time) {
	if s == nil {
		return nil, nil, nil
	}
	return &s.ID, &s.DeviceID, &s.Expires
}

// Owner returns the holder of a ticket. The ticket stays valid. Errors: ErrInvalidTicket, errors of
// the database.
func (t *Tickets) Owner(ctx context.Context, ticket, scope string) (h Holder, err error) {
	var session *uuid.UUID
	var device *string
	var expires *time.Time
	err = t.db.QueryRow(ctx, `
		SELECT did, session_id, device_id, session_expires_at FROM subscription_tickets
		WHERE hash = $1 AND scope = $2 AND expires_at > clock_timestamp()`, hashOf(ticket), scope).Scan(&h.DID, &session,
		&device, &expires)
	if errors.Is(err, pgx.ErrNoRows) {
		return Holder{}, ErrInvalidTicket
	}
	if err != nil {
		return Holder{}, fmt.Errorf("read a ticket: %w", err)
	}
	if session != nil {
		h.Session = &HolderSession{ID: *session, DeviceID: *device, Expires: *expires}
	}
	return h, nil
}

// Redeem deletes a ticket and returns its DID. If several requests use the ticket at once, on any
// nodes, the row lock lets only one request delete the row. A ticket for another method is not
// deleted. Errors: ErrInvalidTicket, errors of the database.
func (t *Tickets) Redeem(ctx context.Context, ticket, scope string) (did syntax.DID, err error) {
	err = t.db.QueryRow(ctx, `
		DELETE FROM subscription_tickets WHERE hash = $1 AND scope = $2 AND expires_at > clock_timestamp()
		RETURNING did`, hashOf(ticket), scope).Scan(&did)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", ErrInvalidTicket
	}
	return did, errs.Wrap(err, "redeem a ticket")
}

// SweepTickets deletes expired tickets.
func SweepTickets(db *pgxpool.Pool) worker.Sweep {
	return worker.Statement(db, "subscription_tickets", `
		DELETE FROM subscription_tickets WHERE hash IN (
			SELECT hash FROM subscription_tickets WHERE expires_at <= now() LIMIT $1 FOR UPDATE SKIP LOCKED)`)
}

func hashOf(ticket string) []byte {
	hash := sha256.Sum256([]byte(ticket))
	return hash[:]
}
