package sessions

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/serviceauth"
)

// Errors of Create. ErrDevice says that a text is not the id of a device.
var (
	ErrDevice = errors.New("deviceId must be 64 lower-case hexadecimal digits: the SHA-256 of the device's signature key")
	ErrDID    = errors.New("the account's DID is too long for a session: send service-auth tokens")
)

// RefreshError says why a session cannot be refreshed.
type RefreshError struct{ Reason string }

func (e *RefreshError) Error() string { return e.Reason }

// Grant is what a client gets for a service-auth token, or for a refresh token.
type Grant struct {
	Bearer  string
	Expires time.Time
	Refresh string
	Ends    time.Time // when the session ends; a bearer that is valid until then is the last one
	// Repeated says that the refresh token had already been used, a moment ago.
	Repeated bool
}

// stored is the part of a row of sessions that the tokens are made from.
type stored struct {
	id      uuid.UUID
	did     syntax.DID
	device  [deviceLen]byte
	serial  int32
	key     int32
	issued  time.Time
	expires time.Time
	ends    time.Time
}

// grant returns the tokens of a row.
func (r *stored) grant(key *macKey) Grant {
	c := claims{key: r.key, id: r.id, serial: r.serial, issued: r.issued, expires: r.expires, device: r.device, did: r.did}
	return Grant{Bearer: c.sign(bearerPrefix, key), Expires: r.expires, Refresh: c.sign(refreshPrefix, key), Ends: r.ends}
}

// createSQL stores a session.
//
//go:embed create.sql
var createSQL string

// Create makes a session of a device. from is the client's address or its network, and token is the
// key that verified the account's service-auth token. Create looks the account's key up. A token
// that is signed with a replaced key buys no session, and sessions that were bought with such a key
// end. If the account has maxSessions already, its oldest sessions end. Sessions that are bought at
// the same moment can exceed maxSessions for a moment.
//
// Errors: ErrDevice, ErrDID, *serviceauth.InvalidError, serviceauth.ErrOften, serviceauth.ErrBusy,
// serviceauth.ErrUnavailable, errors of the database.
func (s *Service) Create(ctx context.Context, did syntax.DID, from, device string,
	token atcrypto.PublicKey) (Grant, error) {
	r := stored{did: did}
	var ok bool
	if r.device, ok = parseDevice(device); !ok {
		return Grant{}, ErrDevice
	}
	if len(did) > maxDID {
		return Grant{}, ErrDID
	}
	identity, err := s.cfg.Identities.Current(ctx, did, from)
	if err != nil {
		return Grant{}, err
	}
	if !identity.Key.Equal(token) {
		return Grant{}, invalid(reasonSigner)
	}
	signer, err := s.signer()
	if err != nil {
		return Grant{}, err
	}
	if r.id, err = uuid.NewRandom(); err != nil {
		return Grant{}, fmt.Errorf("make the id of a session: %w", err)
	}
	r.key = signer.id
	err = s.cfg.Lookups.QueryRow(ctx, createSQL, pgx.NamedArgs{
		"id": r.id, "did": did, "device": device, "account_key": identity.Key.DIDKey(), "key_version": identity.Version,
		"signing_key": r.key, "bearer_life": bearerLife, "life": sessionLife, "most": maxSessions,
	}).Scan(&r.issued, &r.expires, &r.ends)
	if err != nil {
		return Grant{}, fmt.Errorf("store a session: %w", err)
	}
	return r.grant(signer.key), nil
}

// Refresh replaces the tokens of a session, which must be the caller's. A refresh token can be used
// once. For repeatFor after its use, a repetition gets the first answer. A later repetition ends
// the session, because two clients have the token. Errors: *RefreshError, and the errors of Create.
func (s *Service) Refresh(ctx context.Context, session Session, from, refresh string) (Grant, error) {
	c, err := parse(refreshPrefix, refresh, s.key)
	if err != nil || c.id != session.ID {
		return Grant{}, &RefreshError{"the refresh token is not this session's; buy a session with createSession"}
	}
	identity, err := s.cfg.Identities.Current(ctx, session.DID, from)
	if err != nil {
		return Grant{}, err
	}
	signer, err := s.signer()
	if err != nil {
		return Grant{}, err
	}
	r := stored{id: c.id, did: c.did, device: c.device}
	var outcome refreshOutcome
	err = pgx.BeginFunc(ctx, s.cfg.Lookups, func(tx pgx.Tx) (err error) {
		outcome, err = r.refresh(ctx, tx, c.serial, identity, signer.id)
		return err
	})
	if err != nil {
		return Grant{}, fmt.Errorf("refresh a session: %w", err)
	}
	return s.refreshed(ctx, session, &r, outcome)
}

// refreshed carries out the decision of Refresh.
func (s *Service) refreshed(ctx context.Context, session Session, r *stored, outcome refreshOutcome) (Grant, error) {
	switch outcome {
	case refreshEnded:
		return Grant{}, invalid(reasonEnded)
	case refreshOver:
		return Grant{}, &RefreshError{"the session ends with its bearer: buy a new one with createSession"}
	case refreshReplaced, refreshReused:
		if err := EndSession(ctx, s.cfg.Lookups, session); err != nil {
			return Grant{}, err
		}
		s.Ended(session)
		if outcome == refreshReplaced {
			return Grant{}, invalid(reasonKey)
		}
		return Grant{}, &RefreshError{"the refresh token was used before: the session has ended; buy a new one with " +
			"createSession"}
	}
	key := s.key(r.key)
	if key == nil {
		return Grant{}, fmt.Errorf("%w: the key of a session is not known here", serviceauth.ErrUnavailable)
	}
	g := r.grant(key)
	g.Repeated = outcome == refreshRepeated
	return g, nil
}

// refreshOutcome is the outcome of an attempt to refresh a session.
type refreshOutcome int

const (
	refreshDone     refreshOutcome = iota
	refreshRepeated                // the first answer is given again
	refreshEnded                   // the session has ended
	refreshOver                    // the session cannot be refreshed any more
	refreshReplaced                // the account has another key
	refreshReused                  // the refresh token was used long ago
)

// refresh locks the row of the session, decides, and writes the new bearer. serial is the refresh
// token's serial.
func (r *stored) refresh(ctx context.Context, tx pgx.Tx, serial int32, identity serviceauth.Identity,
	signer int32) (refreshOutcome, error) {
	var accountKey string
	var ended, over bool
	var age time.Duration
	err := tx.QueryRow(ctx, `
		SELECT account_key, serial, signed_with, issued_at, expires_at, ends_at, ended_version IS NOT NULL,
			expires_at >= ends_at, clock_timestamp() - issued_at
		FROM sessions WHERE id = $1 FOR UPDATE`, r.id).
		Scan(&accountKey, &r.serial, &r.key, &r.issued, &r.expires, &r.ends, &ended, &over, &age)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && ended:
		return refreshEnded, nil
	case err != nil:
		return refreshEnded, err
	case accountKey != identity.Key.DIDKey():
		return refreshReplaced, nil
	case r.serial == serial+1 && age <= repeatFor:
		return refreshRepeated, nil
	case r.serial != serial:
		return refreshReused, nil
	case over:
		return refreshOver, nil
	}
	r.serial, r.key = serial+1, signer
	return refreshDone, tx.QueryRow(ctx, `
		UPDATE sessions SET serial = $2, signed_with = $3, key_version = $4, issued_at = date_trunc('second',
			clock_timestamp()),
			expires_at = least(date_trunc('second', clock_timestamp()) + $5::interval, ends_at)
		WHERE id = $1 RETURNING issued_at, expires_at`, r.id, r.serial, r.key, identity.Version, bearerLife).
		Scan(&r.issued, &r.expires)
}
