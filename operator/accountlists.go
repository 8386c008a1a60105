package operator

import (
	"context"
	_ "embed"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/people/quota"
)

// AccountLists lists what the server stores about an account, without content.
type AccountLists struct {
	Invited     int // memberships that the account has not accepted
	Blocks      int // how many accounts it has blocked; an operator does not see which
	Policy      string
	Devices     []Device
	KeyPackages []Stock
	Quotas      []QuotaUse
	Pushes      []PushState
	Welcomes    []Welcome // into convos of which the account is a member, the newest first
}

// Device is a device of an account, as far as the server knows it.
type Device struct {
	ID         string
	Available  int // one-time KeyPackages
	PushKind   string
	PushState  string
	Sessions   int        // sessions that can be used
	Connected  bool       // connected to a node
	LastKeyPkg *time.Time // when it last published a KeyPackage
}

// Stock counts the KeyPackages of a device and a cipher suite.
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

// PushState counts the push jobs of an account in one state.
type PushState struct {
	State     string
	Count     int
	Oldest    time.Time
	LastError string
}

// accountRows is the most rows of each list of an account.
const accountRows = 50

// deviceSQL lists the devices of an account.
//
//go:embed devices.sql
var deviceSQL string

// ReadAccount reads the lists of an account. If the server does not know the account, everything is
// empty.
func ReadAccount(ctx context.Context, tx pgx.Tx, did string, limits quota.Limits) (a AccountLists, err error) {
	err = tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM members WHERE did = $1 AND left_at IS NULL AND requested_at IS NOT NULL),
			(SELECT count(*) FROM blocks WHERE did = $1),
			coalesce((SELECT invitations FROM policies WHERE did = $1), 'everyone')`, did).
		Scan(&a.Invited, &a.Blocks, &a.Policy)
	if err != nil {
		return a, err
	}
	if a.Devices, err = list[Device](ctx, tx, deviceSQL, did, accountRows); err != nil {
		return a, err
	}
	a.KeyPackages, err = list[Stock](ctx, tx, `
		SELECT device_id, cipher_suite, count(*) FILTER (WHERE state = 'available' AND NOT last_resort AND not_after > now()),
			count(*) FILTER (WHERE state = 'available' AND last_resort AND not_after > now()), count(*) FILTER (WHERE state =
				'claimed'),
			count(*) FILTER (WHERE state = 'consumed'),
			count(*) FILTER (WHERE state NOT IN ('available', 'claimed', 'consumed') OR state = 'available' AND not_after <=
				now()),
			min(not_after) FILTER (WHERE state = 'available' AND NOT last_resort AND not_after > now())
		FROM key_packages WHERE did = $1 GROUP BY device_id, cipher_suite ORDER BY device_id, cipher_suite LIMIT $2`, did,
		accountRows)
	if err != nil {
		return a, err
	}
	a.Pushes, err = list[PushState](ctx, tx, `
		SELECT state, count(*), min(created_at), coalesce((array_agg(left(last_error, 120) ORDER BY created_at DESC) FILTER
			(WHERE last_error IS NOT NULL))[1], '')
		FROM push_jobs WHERE did = $1 GROUP BY state ORDER BY state`, did)
	if err != nil {
		return a, err
	}
	if a.Welcomes, err = WelcomesOf(ctx, tx, did, accountRows); err != nil {
		return a, err
	}
	a.Quotas, err = Quotas(ctx, tx, limits, did, accountRows)
	return a, err
}

// Memberships lists the convos of which an account is a member, in the order of ids, beginning
// after the convo after.
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
	RequestedAt *time.Time // when the invitation began to wait for an answer; nil if the account has accepted
	JoinedSeq   int64
	CursorSeq   int64 // the last entry that the account has read
}
