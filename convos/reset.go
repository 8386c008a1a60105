package convos

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos/disputes"
	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/outbox"
	"mlsd/people/consent"
	"mlsd/people/quota"
	"mlsd/welcome"
)

// ResetPause is how long a convo that a reset has opened cannot be reset again. So members who
// reset without need move everybody at most once an hour, however many such members there are.
const ResetPause = time.Hour

// ErrRequestCannotReset says that the caller has not accepted the convo.
var ErrRequestCannotReset error = &NotPermittedError{"the caller has not accepted the convo; acceptConvo comes first"}

// Reset closes a convo whose group is beyond repair, and opens a new convo for its members.
type Reset struct {
	ConvoID   uuid.UUID
	Caller    syntax.DID
	Reason    string
	GroupInfo []byte                // of the new group
	Welcome   []byte                // for the new group's devices; nil if the caller's device is alone in it
	Foreign   []keypackages.Foreign // KeyPackages of other services that the Welcome can name
	Hash      [sha256.Size]byte     // SHA-256 of the request

	// Root returns the size and the root of the tree over a convo's log, including what tx has
	// appended. The transaction holds the convo's lock.
	Root func(ctx context.Context, tx pgx.Tx, convo uuid.UUID) (size int64, root [sha256.Size]byte, err error)

	judged *judgedReset // nil until Judge was called
}

// judgedReset is the result of Judge.
type judgedReset struct {
	group NewConvo // a convo whose members are the people in the new group's tree
	err   error    // nil if the group can replace another group
}

// Judge verifies the GroupInfo, which takes long if the group is large. Judge needs no database, so
// call it before the transaction. ResetConvo returns Judge's error.
func (r *Reset) Judge() {
	r.judged = &judgedReset{}
	r.judged.group, r.judged.err = r.judge()
}

func (r *Reset) judge() (n NewConvo, err error) {
	info, err := mls.ParseGroupInfo(r.GroupInfo)
	switch {
	case err != nil:
		return n, invalid(GroupInfo, "%v", err)
	case len(info.GroupID) == 0 || len(info.GroupID) > mls.MaxGroupIDSize:
		return n, invalid(GroupInfo, "group_id must have 1 to %d bytes, as the groupId of a convo", mls.MaxGroupIDSize)
	}
	n = NewConvo{Creator: r.Caller, GroupID: bytes.Clone(info.GroupID), CipherSuite: info.CipherSuite,
		Welcome: r.Welcome, GroupInfo: r.GroupInfo}
	tree, err := info.Tree()
	if err != nil {
		return n, invalid(GroupInfo, "%v", err)
	}
	known := map[string]bool{r.Caller.String(): true}
	for m := range tree.Members() {
		if did := m.DID(); !known[did] {
			known[did] = true
			n.Members = append(n.Members, syntax.DID(did))
		}
	}
	n.Judge()
	return n, n.judged.err
}

// IsOpen reports whether did is a member of an open convo.
func IsOpen(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, did syntax.DID) (open bool, err error) {
	err = q.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM convos c JOIN members m ON m.convo_id = c.id AND m.did = $2 AND m.left_at IS NULL
			WHERE c.id = $1 AND c.closed_at IS NULL)`, convo, did).Scan(&open)
	return open, errs.Wrap(err, "look whether the convo is open")
}

// resetSQL opens the successor.
//
//go:embed reset.sql
var resetSQL string

// ResetConvo closes the convo and opens its successor, in one transaction. The last entry of the
// old log names the successor. The first entry of the new log names the old log and the root of its
// tree. So a reader of the old log finds the new one, however late it reads.
//
// The successor has the same roster, and each member's consent carries over: a member who has not
// accepted the old convo has not accepted the successor either. Admins stay admins. The creator stays
// the creator; if the creator has left, the admin takes its place who was the first to join. Members
// without a device in the new group join by external commit, or are added later. Welcomes of the old
// convo stay, so that a member who has not joined yet can read the old log.
//
// Errors: ErrNotFound, ErrNotMember, *messages.ClosedError and ErrConvoClosed,
// ErrRequestCannotReset, *disputes.OpenError, *quota.ExceededError, ErrGroupAlreadyExists,
// *InvalidObjectError, *consent.BlockedError, and those of r.Root and
// keypackages.Consume.
func ResetConvo(ctx context.Context, tx pgx.Tx, r Reset) (opened Convo, err error) {
	c, err := lockOpen(ctx, tx, r.ConvoID, r.Caller)
	if err != nil {
		return opened, err
	}
	people, err := c.mayReset(ctx, tx, r.Caller)
	if err == nil {
		err = c.handOver(ctx, tx) // an older server can have left the convo without an admin
	}
	if err != nil {
		return opened, err
	}
	if r.judged == nil {
		r.Judge()
	}
	n := r.judged.group
	if err := r.judged.err; err != nil {
		return opened, err
	}
	invited, err := consent.Invite(ctx, tx, r.Caller, n.Members, &c.id)
	if err != nil {
		return opened, err
	}
	invited.Requests = nil // each member's answer to the old convo counts
	for _, did := range n.Members {
		i := slices.IndexFunc(people, func(p successorMember) bool { return p.DID == did })
		if i < 0 {
			return opened, invalid(GroupInfo, "ratchet_tree: holds a device of %s, which is no member of the convo", did)
		}
		if people[i].Request {
			invited.Requests = append(invited.Requests, did)
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return opened, fmt.Errorf("mint a convo id: %w", err)
	}
	if err := c.close(ctx, tx, r, id, n.GroupID); err != nil {
		return opened, err
	}
	if err := c.open(ctx, tx, r, id, people); err != nil {
		return opened, err
	}
	next := locked{id: id, groupID: n.GroupID, cipherSuite: int32(n.CipherSuite), epoch: n.judged.epoch}
	if r.Welcome != nil {
		allowed := rights{adds: n.judged.others, invited: invited, foreign: r.Foreign}
		if err := addWelcome(ctx, tx, next, r.Caller, next.epoch, r.Welcome, allowed, n.judged.verdict); err != nil {
			return opened, err
		}
	}
	if err := keepGroup(ctx, tx, id, next.epoch, n.judged.verdict.group, r.GroupInfo); err != nil {
		return opened, err
	}
	rows := pgpool.Rows(ctx, tx, selectConvos, r.Caller, id, id, 1, All, unreadMost, unreadEntries)
	opened, err = pgx.CollectExactlyOneRow(rows, scanConvo)
	return opened, errs.Wrap(err, "read the successor")
}

// successorMember is a member of the old convo.
type successorMember struct {
	DID     syntax.DID
	Request bool // the member has not accepted the convo
}

// mayReset checks that the caller may reset the convo. It returns the members, in the order in
// which they joined. Errors: ErrRequestCannotReset, *disputes.OpenError, *quota.ExceededError.
func (c *locked) mayReset(ctx context.Context, tx pgx.Tx, caller syntax.DID) (people []successorMember, err error) {
	var pause *time.Duration
	var reports bool
	batch := &pgx.Batch{}
	batch.Queue(`SELECT did, requested_at IS NOT NULL FROM members WHERE convo_id = $1 AND left_at IS NULL
		ORDER BY joined_seq, did <> $2, did`, c.id, c.creator).Query(func(rows pgx.Rows) (err error) {
		people, err = pgx.CollectRows(rows, pgx.RowToStructByPos[successorMember])
		return err
	})
	batch.Queue(`
		SELECT created_at + $2::interval - clock_timestamp() FROM convos
		WHERE id = $1 AND predecessor_id IS NOT NULL AND created_at > clock_timestamp() - $2::interval`, c.id, ResetPause).
		Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, []any{&pause}, func() error { return nil })
			return err
		})
	disputes.QueueReports(batch, c.id, caller, &reports)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("read who may reset: %w", err)
	}
	switch {
	case slices.Contains(people, successorMember{caller, true}):
		return nil, ErrRequestCannotReset
	case c.dispute != nil && (c.dispute.Caller || !reports):
		return nil, &disputes.OpenError{Dispute: *c.dispute}
	case pause != nil:
		return nil, &quota.ExceededError{Quota: quota.ResetsOfConvo, After: *pause}
	}
	return people, nil
}

// successorsCreator returns the successor's creator: the old creator, or, if the old creator has
// left, the first admin in people.
func (c *locked) successorsCreator(people []successorMember) syntax.DID {
	if slices.ContainsFunc(people, func(p successorMember) bool { return p.DID == c.creator }) {
		return c.creator
	}
	return people[slices.IndexFunc(people, func(p successorMember) bool { return c.isAdmin(p.DID) })].DID
}

// close appends the last entry to the log, and closes the convo.
func (c *locked) close(ctx context.Context, tx pgx.Tx, r Reset, successor uuid.UUID, group []byte) error {
	text := hex.EncodeToString(group)
	_, _, err := messages.AppendReset(ctx, tx, messages.ResetEntry{
		ConvoID: c.id, Sender: r.Caller, Epoch: c.epoch, Hash: r.Hash,
		Body: fmt.Appendf(nil, "mlsd convo closed by reset\nsuccessorConvoId %s\nsuccessorGroupId %s\nreason %s\n",
			successor, text, r.Reason),
		Detail: outbox.Detail{By: r.Caller, Epoch: c.epoch, Reason: r.Reason, SuccessorID: successor, SuccessorGroupID: text},
	})
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE convos SET closed_at = clock_timestamp(), successor_id = $2, successor_group_id = $3 WHERE id = $1`,
		c.id, successor, group)
	if err != nil {
		return fmt.Errorf("close the convo: %w", err)
	}
	return welcome.EndInvitations(ctx, tx, c.id)
}

// open inserts the successor with its roster and the first entry of its log. Error:
// ErrGroupAlreadyExists.
func (c *locked) open(ctx context.Context, tx pgx.Tx, r Reset, id uuid.UUID, people []successorMember) error {
	size, root, err := r.Root(ctx, tx, c.id)
	if err != nil {
		return err
	}
	n := r.judged.group
	var inserted, deleted bool
	batch := &pgx.Batch{}
	batch.Queue(resetSQL, pgx.NamedArgs{
		"successor": id, "successor_group": n.GroupID, "creator": c.successorsCreator(people),
		"suite": int32(n.CipherSuite), "epoch": n.judged.epoch, "level": n.judged.verdict.level, "convo": c.id,
		"convo_creator": c.creator,
	}).QueryRow(func(row pgx.Row) error { return row.Scan(&inserted) })
	var members, requests []syntax.DID
	for _, p := range people {
		members = append(members, p.DID)
		if p.Request {
			requests = append(requests, p.DID)
		}
	}
	outbox.Queue(batch, id, joined(r.Caller, n.judged.epoch, members, requests)...)
	group := sha256.Sum256(n.GroupID)
	batch.Queue(`SELECT EXISTS (SELECT FROM deleted_convos WHERE group_hash = $1)`, group[:]).
		QueryRow(func(row pgx.Row) error { return row.Scan(&deleted) })
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("insert the successor: %w", err)
	}
	if !inserted || deleted {
		return ErrGroupAlreadyExists
	}
	_, _, err = messages.AppendReset(ctx, tx, messages.ResetEntry{
		ConvoID: id, Sender: r.Caller, Epoch: n.judged.epoch, Hash: r.Hash, Opens: true,
		Body: fmt.Appendf(nil,
			"mlsd convo opened by reset\npredecessorConvoId %s\npredecessorGroupId %x\nsize %d\nroot %s\nreason %s\n",
			c.id, c.groupID, size, base64.StdEncoding.EncodeToString(root[:]), r.Reason),
		Detail: outbox.Detail{By: r.Caller, Epoch: n.judged.epoch, Reason: r.Reason, PredecessorID: c.id},
	})
	return err
}
