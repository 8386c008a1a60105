package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/keypackages"
	"mlsd/mls"
	"mlsd/outbox"
	"mlsd/people/consent"
	"mlsd/people/quota"
)

// DistrustError says why this service does not deal with a caller.
type DistrustError struct {
	DID    syntax.DID
	Reason string
}

func (e *DistrustError) Error() string { return e.DID.String() + " " + e.Reason }

// InvitationError says why an invitation is refused for good.
type InvitationError struct{ Reason string }

func (e *InvitationError) Error() string { return e.Reason }

// Peer is another service that calls this one.
type Peer struct {
	DID    syntax.DID
	Domain string // the registered domain of its endpoint
}

// Peer finds out whether a verified caller is a delivery service that this service deals with. It
// looks up a caller that the operator has chosen and that is not remembered. Errors: *DistrustError, ErrLookup.
func (s *Service) Peer(ctx context.Context, caller syntax.DID) (Peer, error) {
	if caller == s.cfg.DID {
		return Peer{}, &DistrustError{caller, "is this service itself"}
	}
	if err := s.Deals(caller); err != nil {
		return Peer{}, err
	}
	service, err := s.cfg.Services.Service(ctx, caller, serviceauth.Remembered)
	switch {
	case errors.Is(err, serviceauth.ErrNoService):
		return Peer{}, &DistrustError{caller, "is no delivery service"}
	case err != nil:
		return Peer{}, fmt.Errorf("%w: %s: %w", ErrLookup, caller, err)
	}
	return Peer{DID: caller, Domain: service.Domain}, nil
}

// Received is what another service tells about an invitation.
type Received struct {
	From Peer
	Kind Kind
	// To is the device that the Welcome is for, and the device's KeyPackage here.
	To          keypackages.Recipient
	CipherSuite mls.CipherSuite
	ConvoID     uuid.UUID
	Inviter     syntax.DID
	Epoch       int64
	ExpiresAt   *time.Time
	// Withheld says that the inviter may not use this service now.
	Withheld bool
}

// Receive stores an invitation, consumes its KeyPackage, and tells the person. If the person
// refuses the inviter, nobody sees the row, and the service gets the same answer. If the person
// does not know the inviter, the invitation counts against the budgets of the service and the
// bounds of the person. An invitation that is stored already changes nothing.
//
// The end of an invitation is stored in its row. If the end arrives before the invitation, nobody
// ever sees the invitation. The first end counts.
//
// Errors: keypackages.ErrNotFound, *InvitationError, *BudgetError, *quota.ExceededError, errors of
// the database.
func Receive(ctx context.Context, tx pgx.Tx, r Received, bounds quota.Invitations) error {
	if err := pgpool.LockInvited.Wait(ctx, tx, r.To.DID.String()); err != nil {
		return err
	}
	allowed, err := consent.Invite(ctx, tx, r.Inviter, []syntax.DID{r.To.DID}, nil)
	blocks := errors.As(err, new(*consent.BlockedError)) // also if the inviter blocks the person
	if err != nil && !blocks {
		return err
	}
	key, err := keypackages.LockElsewhere(ctx, tx, r.To, r.CipherSuite)
	forgotten := errors.Is(err, keypackages.ErrNotFound) // an invitation can be older than the kept KeyPackages
	if err != nil && !(forgotten && r.Kind != Invited) {
		return err
	}
	if r.Kind != Invited {
		if there, err := r.end(ctx, tx); err != nil || there {
			return err
		}
	}
	if forgotten {
		return err
	}
	before, err := r.before(ctx, tx)
	switch {
	case err != nil:
		return err
	case before.Same:
		return nil
	case before.Used && !key.LastResort:
		return &InvitationError{"the KeyPackage was consumed by another Welcome"}
	}
	if refused := key.By(r.Inviter); refused != "" {
		return &InvitationError{refused}
	}
	hidden := blocks || r.Withheld || len(allowed.Refused) > 0 || r.Kind != Invited
	// A last-resort KeyPackage has no claim that shows who the inviter is.
	request := len(allowed.Requests) > 0 && !before.Known || key.LastResort
	if request && !before.Welcomed {
		if before.Invited { // the convo is counted already
			before.Open, before.OfInviter = 0, 0
		}
		// A person who has claimed the KeyPackage is never refused because of others. For whom nobody
		// has claimed, the service stands.
		by := cause{r.From.Domain, r.Inviter, !key.LastResort}
		if by.proven {
			before.OfDomain = 0
		} else {
			before.Open, before.OfInviter = 0, 0
		}
		if err := bounds.Check(before.Open, before.OfInviter, before.OfDomain); err != nil {
			return err
		}
		if err := by.spend(ctx, tx); err != nil {
			return err
		}
	}
	if err := keypackages.ConsumeElsewhere(ctx, tx, r.To); err != nil {
		return err
	}
	return r.store(ctx, tx, request, hidden)
}

// end stores the end of an invitation, and tells the person if the person sees the invitation.
// there says whether the invitation is stored.
func (r Received) end(ctx context.Context, tx pgx.Tx) (there bool, err error) {
	var request, hidden, before bool
	err = tx.QueryRow(ctx, `
		WITH locked AS MATERIALIZED (
			SELECT did, id, request, hidden, ended FROM received_invitations
			WHERE (did, service, convo_id, ref, epoch) = ($1, $2, $3, $4, $5) FOR UPDATE
		), changed AS (
			UPDATE received_invitations r SET ended = $6 FROM locked
			WHERE (r.did, r.id) = (locked.did, locked.id) AND locked.ended IS NULL
		)
		SELECT request, hidden, ended IS NOT NULL FROM locked`,
		r.To.DID, r.From.DID, r.ConvoID, []byte(r.To.Ref), r.Epoch, string(r.Kind)).Scan(&request, &hidden, &before)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("end the invitation: %w", err)
	}
	if hidden || before {
		return true, nil
	}
	batch := &pgx.Batch{}
	r.queueEvent(batch, request, r.Kind)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return false, fmt.Errorf("end the invitation: %w", err)
	}
	return true, nil
}

// queueEvent adds the event for the invited person. It names no convo of this service. kind is "" for
// a new invitation.
func (r Received) queueEvent(batch *pgx.Batch, request bool, kind Kind) {
	outbox.Queue(batch, uuid.Nil, outbox.Event{Kind: outbox.Invitation, DID: r.To.DID, Detail: outbox.Detail{
		Change: string(kind), Service: r.From.DID, ConvoID: r.ConvoID.String(), By: r.Inviter, DeviceID: r.To.DeviceID,
		KeyPackageRef: r.To.Ref.String(), Epoch: r.Epoch, Request: request,
	}})
}

// before describes the earlier invitations of a person.
type before struct {
	Same      bool  // this invitation is stored already
	Used      bool  // another invitation uses the KeyPackage
	Invited   bool  // the person was invited into the convo
	Welcomed  bool  // the person was invited by the same Welcome, for another device
	Known     bool  // the person has accepted an invitation of the inviter
	Open      int64 // proven: convos of requests of the domain that the person sees and has not answered
	OfInviter int64 // proven: convos of the inviter's requests that are open, or of the last day and not accepted
	OfDomain  int64 // unproven: Welcomes of the domain's requests of the last day that are not accepted
}

// newestReceived is how many of a person's newest invitations are read.
const newestReceived = 1000

func (r Received) before(ctx context.Context, tx pgx.Tx) (b before, err error) {
	rows, err := tx.Query(ctx, `
		WITH newest AS MATERIALIZED (
			SELECT service, convo_id, epoch, inviter, domain, request, hidden, state, ended,
				created_at > now() - interval '1 day' AS today, EXISTS (
					SELECT FROM key_packages k WHERE (k.did, k.ref) = (r.did, r.ref) AND k.claimed_by = r.inviter
				) AS proven
			FROM received_invitations r WHERE did = $1 ORDER BY id DESC LIMIT $7
		)
		SELECT
			EXISTS (SELECT FROM received_invitations WHERE (did, service, convo_id, ref, epoch) = ($1, $2, $3, $4, $8)),
			EXISTS (SELECT FROM received_invitations WHERE (did, ref) = ($1, $4)),
			EXISTS (SELECT FROM received_invitations WHERE (did, service, convo_id) = ($1, $2, $3)),
			EXISTS (SELECT FROM received_invitations WHERE (did, service, convo_id, epoch) = ($1, $2, $3, $8)),
			EXISTS (SELECT FROM received_invitations WHERE (inviter, did) = ($5, $1) AND state = 'accepted'),
			count(DISTINCT (service, convo_id))
				FILTER (WHERE proven AND domain = $6 AND state = 'open' AND ended IS NULL AND NOT hidden),
			count(DISTINCT (service, convo_id)) FILTER (WHERE proven AND inviter = $5
				AND (state = 'open' AND ended IS NULL OR today AND state <> 'accepted')),
			count(DISTINCT (service, convo_id, epoch))
				FILTER (WHERE NOT proven AND domain = $6 AND today AND state <> 'accepted')
		FROM newest WHERE request`,
		r.To.DID, r.From.DID, r.ConvoID, []byte(r.To.Ref), r.Inviter, r.From.Domain, newestReceived, r.Epoch)
	if err == nil {
		b, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[before])
	}
	return b, errs.Wrap(err, "look for earlier invitations")
}

// store inserts the row. Unless nobody may see the row, it inserts the event too. As for a Welcome
// of this service, it makes the push job unless the invitation is a request.
func (r Received) store(ctx context.Context, tx pgx.Tx, request, hidden bool) error {
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("mint an invitation's id: %w", err)
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		INSERT INTO received_invitations (did, id, service, domain, convo_id, ref, device_id, cipher_suite, inviter, epoch,
			expires_at, request, hidden, ended, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, nullif($14, 'invited'),
			date_trunc('milliseconds', clock_timestamp()))`,
		r.To.DID, id, r.From.DID, r.From.Domain, r.ConvoID, []byte(r.To.Ref), r.To.DeviceID, int32(r.CipherSuite), r.Inviter,
		r.Epoch, r.ExpiresAt, request, hidden, string(r.Kind))
	if !hidden {
		r.queueEvent(batch, request, "")
		if !request {
			outbox.QueueWelcomeCalls(batch, []syntax.DID{r.To.DID}, []string{r.To.DeviceID})
		}
	}
	return errs.Wrap(tx.SendBatch(ctx, batch).Close(), "store the invitation")
}
