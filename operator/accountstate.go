package operator

import (
	"context"
	_ "embed"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/quota"
)

// AccountState is what the server has of an account, without content.
type AccountState struct {
	Status      AccountStatus
	Convos      int // that it is a member of
	Requests    int // of those, invitations that it has not accepted
	Blocks      int // accounts that it has blocked. Whom is its own affair
	Policy      string
	Devices     []Device
	KeyPackages []Stock
	Quotas      []QuotaUse
	Pushes      []PushState
	Welcomes    []ListedWelcome // into convos of which it is a member, the newest first
}

// AccountStatus is the row of an account. Most accounts have none.
type AccountStatus struct {
	Status        string // as the network says; "": nothing
	StatusAt      *time.Time
	BlockedAt     *time.Time // by an operator
	BlockedBy     string
	BlockedReason string
	EraseAfter    *time.Time
	LimitPercent  int        // an operator's limit; 0: none, or it has ended
	LimitUntil    *time.Time // nil: it has no end
	LimitedAt     *time.Time
	LimitedBy     string
	LimitedReason string
}

// Device is a device of an account, as far as the server knows it.
type Device struct {
	ID         string
	Available  int // one-time KeyPackages
	PushKind   string
	PushState  string
	Sessions   int        // that can be used
	Connected  bool       // to a node
	LastKeyPkg *time.Time // when it last published a KeyPackage
}

// Stock are the KeyPackages of a device and suite.
type Stock struct {
	Device     string
	Suite      int
	Available  int // one-time, not expired
	LastResort int // not expired
	Claimed    int
	Consumed   int
	Other      int        // orphaned or expired
	NextEnds   *time.Time // when the first available one expires
}

// PushState are the push jobs of an account in a state.
type PushState struct {
	State     string
	Count     int
	Oldest    time.Time
	LastError string
}

// accountRows bounds the lists of an account.
const accountRows = 50

// deviceSQL lists the devices of an account.
//
//go:embed devices.sql
var deviceSQL string

// ReadAccount reads what the server has of an account. Of an account that it does not know,
// everything is empty.
func ReadAccount(ctx context.Context, tx pgx.Tx, did string, limits quota.Limits) (a AccountState, err error) {
	for _, read := range []func(context.Context, pgx.Tx, string) error{
		a.readStatus, a.readFigures, a.readDevices, a.readStocks, a.readPushes, a.readWelcomes,
	} {
		if err := read(ctx, tx, did); err != nil {
			return a, err
		}
	}
	a.Quotas, err = Quotas(ctx, tx, limits, did, accountRows)
	return a, err
}

func (a *AccountState) readStatus(ctx context.Context, tx pgx.Tx, did string) error {
	status, err := first[AccountStatus](ctx, tx, `
		SELECT status, status_at, blocked_at, coalesce(blocked_by, ''), coalesce(blocked_reason, ''), erase_after,
			CASE WHEN limit_until <= now() THEN 0 ELSE coalesce(limit_percent, 0) END, limit_until, limited_at, coalesce(limited_by, ''),
			coalesce(limited_reason, '')
		FROM accounts WHERE did = $1`, did)
	if status != nil {
		a.Status = *status
	}
	return err
}

func (a *AccountState) readFigures(ctx context.Context, tx pgx.Tx, did string) error {
	return tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM members WHERE did = $1 AND left_at IS NULL),
			(SELECT count(*) FROM members WHERE did = $1 AND left_at IS NULL AND requested_at IS NOT NULL),
			(SELECT count(*) FROM blocks WHERE did = $1),
			coalesce((SELECT policy FROM invitation_policies WHERE did = $1), 'everyone')`, did).
		Scan(&a.Convos, &a.Requests, &a.Blocks, &a.Policy)
}

func (a *AccountState) readDevices(ctx context.Context, tx pgx.Tx, did string) (err error) {
	a.Devices, err = list[Device](ctx, tx, deviceSQL, did, accountRows)
	return err
}

func (a *AccountState) readStocks(ctx context.Context, tx pgx.Tx, did string) (err error) {
	a.KeyPackages, err = list[Stock](ctx, tx, `
		SELECT device_id, cipher_suite, count(*) FILTER (WHERE state = 'available' AND NOT last_resort AND not_after > now()),
			count(*) FILTER (WHERE state = 'available' AND last_resort AND not_after > now()), count(*) FILTER (WHERE state = 'claimed'),
			count(*) FILTER (WHERE state = 'consumed'),
			count(*) FILTER (WHERE state NOT IN ('available', 'claimed', 'consumed') OR state = 'available' AND not_after <= now()),
			min(not_after) FILTER (WHERE state = 'available' AND NOT last_resort AND not_after > now())
		FROM key_packages WHERE did = $1 GROUP BY device_id, cipher_suite ORDER BY device_id, cipher_suite LIMIT $2`, did, accountRows)
	return err
}

func (a *AccountState) readPushes(ctx context.Context, tx pgx.Tx, did string) (err error) {
	a.Pushes, err = list[PushState](ctx, tx, `
		SELECT state, count(*), min(created_at), coalesce((array_agg(left(last_error, 120) ORDER BY created_at DESC) FILTER (WHERE last_error IS NOT NULL))[1], '')
		FROM push_jobs WHERE did = $1 GROUP BY state ORDER BY state`, did)
	return err
}

func (a *AccountState) readWelcomes(ctx context.Context, tx pgx.Tx, did string) (err error) {
	a.Welcomes, err = list[ListedWelcome](ctx, tx, `
		SELECT w.id, w.convo_id, w.recipient_did, w.device_id, w.epoch, w.state, w.attempts, w.failures, w.created_at, w.fetched_at, w.confirmed_at,
			w.silent, coalesce(left(w.last_failure, 120), '')
		FROM members m JOIN welcomes w ON w.convo_id = m.convo_id AND w.recipient_did = m.did
		WHERE m.did = $1 AND m.left_at IS NULL ORDER BY w.created_at DESC, w.id DESC LIMIT $2`, did, accountRows)
	return err
}

// Memberships lists the convos of which an account is a member behind a convo, in the order of ids.
func Memberships(ctx context.Context, tx pgx.Tx, did string, after uuid.UUID, rows int) ([]Membership, error) {
	return list[Membership](ctx, tx, `
		SELECT convo_id, role, joined_at, requested_at, joined_seq, cursor_seq FROM members
		WHERE did = $1 AND left_at IS NULL AND convo_id > $2 ORDER BY convo_id LIMIT $3`, did, after, rows)
}

// Membership is a membership of an account.
type Membership struct {
	Convo       uuid.UUID
	Role        string
	JoinedAt    time.Time
	RequestedAt *time.Time // since when it waits to be accepted; nil: it is
	JoinedSeq   int64
	CursorSeq   int64 // up to where the account has read
}
