package convos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/convos/disputes"
	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/welcome"
)

// Proposed is a commit as a member sends it, with its Welcome and its GroupInfo.
type Proposed struct {
	Commit    []byte
	Welcome   []byte                // nil if the commit adds no device
	GroupInfo []byte                // of the epoch that the commit creates; nil if not sent
	Foreign   []keypackages.Foreign // KeyPackages of other services that the Welcome can name

	// Verified keeps the results of verifications outside the transaction. If it is nil, all
	// signatures are verified inside the transaction. If it is not nil, the methods that take a
	// Proposed can return an *UnverifiedError.
	Verified *Verifications

	// Key and Hash are the idempotency key and the hash of the request. They are stored with the
	// commit's log entry. The key begins with the method's name.
	Key  string
	Hash [sha256.Size]byte
}

// advance accepts a commit and moves the convo to the next epoch. The epoch in the commit's own
// header must be the current epoch. This is the compare-and-swap of promise 3, under the row lock
// that c holds. If the committer's membership is a request, the commit accepts it. People whose last
// device the commit removes leave the roster; advance changes nothing else there. A commit with
// ReInit closes the convo. While the convo is in dispute, advance accepts only external commits. The
// caller has checked that the convo is open.
func (c *locked) advance(ctx context.Context, tx pgx.Tx, by syntax.DID, p Proposed, allowed rights) (Advanced, error) {
	h, err := c.checkCommit(ctx, tx, by, p.Commit, allowed)
	if err != nil {
		return Advanced{}, err
	}
	v, err := c.judge(ctx, tx, by, p, h, allowed)
	if err == nil {
		err = v.checkReplaced(allowed.replaces)
	}
	if err != nil {
		return Advanced{}, err
	}
	successor, err := v.successor(allowed)
	if err != nil {
		return Advanced{}, err
	}
	allowed.foreign = p.Foreign
	next := c.epoch + 1
	seq, _, err := messages.AppendCommit(ctx, tx, messages.CommitEntry{
		ConvoID: c.id, Sender: by, Key: p.Key, Hash: p.Hash, Epoch: next, Body: p.Commit, Successor: successor,
	})
	if err != nil {
		return Advanced{}, fmt.Errorf("append the commit: %w", err)
	}
	batch := &pgx.Batch{}
	batch.Queue(`
		UPDATE convos SET epoch = $2, commit_level = $3, successor_group_id = $4,
			closed_at = CASE WHEN $4::bytea IS NOT NULL THEN clock_timestamp() END
		WHERE id = $1`, c.id, next, v.level, successor)
	c.recordAccepted(batch, by)
	batch.Queue(`UPDATE members SET requested_at = NULL WHERE convo_id = $1 AND did = $2 AND requested_at IS NOT NULL`,
		c.id, by)
	superseded := v.superseded(allowed.replaces)
	welcome.QueueLock(batch, c.id, allowed.people(by, superseded))
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return Advanced{}, fmt.Errorf("advance the epoch: %w", err)
	}
	if err := keepGroup(ctx, tx, c.id, next, v.group, p.GroupInfo); err != nil {
		return Advanced{}, err
	}
	if err := c.endWelcomes(ctx, tx, superseded...); err != nil {
		return Advanced{}, err
	}
	if successor != nil {
		if err := welcome.EndInvitations(ctx, tx, c.id); err != nil {
			return Advanced{}, err
		}
	}
	if p.Welcome != nil {
		if err := addWelcome(ctx, tx, *c, by, next, p.Welcome, allowed, v); err != nil {
			return Advanced{}, err
		}
	}
	if allowed.joins {
		if err := disputes.Rejoined(ctx, tx, c.id, by, next); err != nil {
			return Advanced{}, err
		}
	}
	c.epoch, c.lastSeq, c.closed = next, seq, successor != nil
	return Advanced{Epoch: next, Seq: seq}, c.removeDeparted(ctx, tx, v.gone, allowed.removes)
}

// checkCommit reads the commit's header. It checks the commit's type, group and epoch, that no
// dispute forbids the commit, and that the next commit is not reserved for another member.
func (c *locked) checkCommit(ctx context.Context, tx pgx.Tx, by syntax.DID, commit []byte, allowed rights) (mls.Header,
	error) {
	h, err := mls.ParseHeader(commit)
	refused := c.checkDispute(allowed)
	most := mls.CipherSuite(c.cipherSuite).Limits().Commit
	switch {
	case err != nil:
		return h, invalid(Commit, "%v", err)
	case len(commit) > most:
		return h, invalid(Commit, "%d bytes, and a commit of %s has at most %d", len(commit),
			mls.CipherSuite(c.cipherSuite), most)
	case h.ContentType != mls.ContentTypeCommit:
		return h, invalid(Commit, "content_type is %s, and not commit (RFC 9420 §6)", h.ContentType)
	case !bytes.Equal(h.GroupID, c.groupID):
		return h, invalid(Commit, "group_id is %x, and the convo's %x", h.GroupID, c.groupID)
	case int64(h.Epoch) != c.epoch:
		winner, err := messages.CommitSeq(ctx, tx, c.id, int64(h.Epoch)+1)
		if err != nil {
			return h, err
		}
		return h, &messages.EpochMismatchError{Epoch: int64(h.Epoch), Current: c.epoch, WonBy: winner}
	case refused != nil:
		return h, refused
	case c.reserved != nil:
		return h, &ReservedError{Epoch: c.epoch, Left: *c.reserved}
	case c.epoch == mls.MaxEpoch:
		return h, invalid(Commit, "epoch is the last one that can be stored")
	}
	return h, nil
}

// checkDispute refuses a commit while the convo is in dispute. It lets an external commit pass if
// no open dispute names its sender. It comes after the check of the epoch, because the error
// ConvoDisputed says that the same commit can be sent again later, and a commit of an earlier epoch
// cannot.
func (c *locked) checkDispute(allowed rights) error {
	if c.dispute == nil {
		return nil
	}
	if allowed.joins && !c.dispute.Caller {
		return nil
	}
	return &disputes.OpenError{Dispute: *c.dispute}
}

// addWelcome consumes the KeyPackages that a Welcome names, and makes the Welcome available to
// their devices. The Welcome must reach each added member. It may name devices of added members and
// other devices of the committer, and no others. It must agree with what is known of the commit.
// The KeyPackages of people who refuse the invitation count as not found.
func addWelcome(ctx context.Context, tx pgx.Tx, c locked, by syntax.DID, epoch int64, body []byte, allowed rights,
	v verdict) error {
	added := allowed.adds
	w, err := mls.ParseWelcome(body)
	if err != nil {
		return invalid(Welcome, "%v", err)
	}
	if int32(w.CipherSuite) != c.cipherSuite {
		return invalid(Welcome, "cipher_suite is %s, and the convo's %s", w.CipherSuite, mls.CipherSuite(c.cipherSuite))
	}
	if most := (len(added) + 1) * maxDevices; len(w.Refs) > most {
		return invalid(Welcome, "names %d KeyPackages, and at most %d for so many people", len(w.Refs), most)
	}
	owners := distinct(append(slices.Clip(added), by), allowed.invited.Refused...)
	devices, used, err := keypackages.Consume(ctx, tx, by, owners, w.CipherSuite, w.Refs, allowed.foreign)
	if err != nil {
		return err
	}
	err = welcome.Invite(ctx, tx, welcome.Invitation{ConvoID: c.id, Inviter: by, Epoch: epoch, For: used})
	if err != nil {
		return err
	}
	to := make([]welcome.Recipient, len(devices))
	for i, d := range devices {
		to[i] = welcome.Recipient{DID: d.DID, DeviceID: d.DeviceID, Ref: d.Ref,
			Request: slices.Contains(allowed.invited.Requests, d.DID)}
		if slices.ContainsFunc(to[:i], func(r welcome.Recipient) bool { return r.DID == d.DID && r.DeviceID == d.DeviceID }) {
			return invalid(Welcome, "names two KeyPackages of one device of %s; a signature key is one leaf (RFC 9420 §7.3)",
				d.DID)
		}
	}
	for _, did := range added {
		if !slices.ContainsFunc(to, func(r welcome.Recipient) bool { return r.DID == did }) {
			return invalid(Welcome, "names no KeyPackage of %s", did)
		}
	}
	if err := v.checkRecipients(by, to, allowed.replaces); err != nil {
		return err
	}
	return welcome.Add(ctx, tx, c.id, epoch, body, to)
}

// Submission is a commit that does not change the roster.
type Submission struct {
	ConvoID uuid.UUID
	Caller  syntax.DID
	Device  string // the device that Rejoin adds; "" means any device
	Proposed
}

// Submit accepts a commit that rotates keys, adds devices of the caller's own with a Welcome, or
// makes other changes that their authors may make (whomay.go). A commit with ReInit closes the
// convo. Errors: ErrNotFound, ErrNotMember, ErrConvoClosed, ErrNotPermitted, *ReservedError,
// *messages.EpochMismatchError, *InvalidObjectError, and those of keypackages.Consume.
func Submit(ctx context.Context, tx pgx.Tx, s Submission) (Advanced, error) {
	return submit(ctx, tx, s, rights{})
}

// Rejoin accepts an external commit (RFC 9420 §12.4.3.2). The commit adds a device of a current
// member to the group without a Welcome. It can also remove an older device of the same member. The
// server must be able to verify the commit. If the device is not s.Device, the error is
// ErrNotPermitted. Errors: those of Submit, and ErrNoGroupInfo.
func Rejoin(ctx context.Context, tx pgx.Tx, s Submission) (Advanced, error) {
	return submit(ctx, tx, s, rights{joins: true, device: s.Device})
}

func submit(ctx context.Context, tx pgx.Tx, s Submission, allowed rights) (Advanced, error) {
	c, err := lockOpen(ctx, tx, s.ConvoID, s.Caller)
	if err != nil {
		return Advanced{}, err
	}
	return c.advance(ctx, tx, s.Caller, s.Proposed, allowed)
}
