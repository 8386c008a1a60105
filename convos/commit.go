package convos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"

	"mlsd/keypackages"
	"mlsd/messages"
	"mlsd/mls"
	"mlsd/welcome"
)

// Proposed is a commit as a member offers it, with what it brings.
type Proposed struct {
	Commit    []byte
	Welcome   []byte // nil if it adds nobody
	GroupInfo []byte // of the epoch it creates; nil if not sent

	// Key and Hash are the request's; they stand on the commit's log entry. The key has the method's name in front.
	Key  string
	Hash [sha256.Size]byte
}

// advance accepts a commit: the convo goes from the epoch in the commit's own header, which must be the current one, to the
// next. It is the compare-and-swap of promise 3, under the row lock that c holds; added are the members that the commit's
// Welcome must reach. It does not change the roster.
func (c *locked) advance(ctx context.Context, tx pgx.Tx, by syntax.DID, p Proposed, added []syntax.DID) (Advanced, error) {
	if err := c.checkCommit(p.Commit); err != nil {
		return Advanced{}, err
	}
	next := c.epoch + 1
	if p.GroupInfo != nil {
		if _, err := checkGroupInfo(p.GroupInfo, c.groupID, c.cipherSuite, &next); err != nil {
			return Advanced{}, err
		}
	}
	seq, _, err := messages.AppendCommit(ctx, tx, messages.CommitEntry{
		ConvoID: c.id, Sender: by, Key: p.Key, Hash: p.Hash, Epoch: next, Body: p.Commit,
	})
	if err != nil {
		return Advanced{}, fmt.Errorf("append the commit: %w", err)
	}
	_, err = tx.Exec(ctx, `
		UPDATE convos SET epoch = $2::bigint, group_info = coalesce($3, group_info),
			group_info_epoch = CASE WHEN $3::bytea IS NULL THEN group_info_epoch ELSE $2::bigint END
		WHERE id = $1`, c.id, next, p.GroupInfo)
	if err != nil {
		return Advanced{}, fmt.Errorf("advance the epoch: %w", err)
	}
	if p.Welcome != nil {
		if err := deposit(ctx, tx, *c, by, next, p.Welcome, added); err != nil {
			return Advanced{}, err
		}
	}
	c.epoch, c.lastSeq = next, seq
	return Advanced{Epoch: next, Seq: seq}, nil
}

// checkCommit reads the commit's header: what it is, of which group, made in which epoch.
func (c *locked) checkCommit(commit []byte) error {
	h, err := mls.ParseHeader(commit)
	switch {
	case err != nil:
		return invalid(Commit, "%v", err)
	case h.ContentType != mls.ContentTypeCommit:
		return invalid(Commit, "content_type is %s (RFC 9420 §6)", h.ContentType)
	case h.WireFormat == mls.WireFormatPublicMessage && h.SenderType != mls.SenderTypeMember:
		return invalid(Commit, "sender is %s, not a member (RFC 9420 §12.4)", h.SenderType)
	case !bytes.Equal(h.GroupID, c.groupID):
		return invalid(Commit, "group_id is of another group")
	case int64(h.Epoch) != c.epoch:
		return &messages.EpochMismatchError{Epoch: int64(h.Epoch), Current: c.epoch}
	case c.epoch == mls.MaxEpoch:
		return invalid(Commit, "epoch is the last one that can be stored")
	}
	return nil
}

// checkGroupInfo reads a GroupInfo and compares it with what is known of the group. epoch may be nil: not known.
func checkGroupInfo(groupInfo, groupID []byte, suite int32, epoch *int64) (mls.GroupInfo, error) {
	info, err := mls.ParseGroupInfo(groupInfo)
	switch {
	case err != nil:
		return info, invalid(GroupInfo, "%v", err)
	case !bytes.Equal(info.GroupID, groupID):
		return info, invalid(GroupInfo, "group_id is of another group")
	case int32(info.CipherSuite) != suite:
		return info, invalid(GroupInfo, "cipher_suite is %s", info.CipherSuite)
	case epoch != nil && int64(info.Epoch) != *epoch:
		return info, invalid(GroupInfo, "epoch is %d, not %d", info.Epoch, *epoch)
	}
	return info, nil
}

// deposit routes a Welcome to the devices whose KeyPackages it names, which are used up by it. Each added member must be
// reached, and nobody else, except that its maker may bring in other devices of its own.
func deposit(ctx context.Context, tx pgx.Tx, c locked, by syntax.DID, epoch int64, body []byte, added []syntax.DID) error {
	w, err := mls.ParseWelcome(body)
	if err != nil {
		return invalid(Welcome, "%v", err)
	}
	if int32(w.CipherSuite) != c.cipherSuite {
		return invalid(Welcome, "cipher_suite is %s", w.CipherSuite)
	}
	devices, err := keypackages.Consume(ctx, tx, by, append(slices.Clip(added), by), w.CipherSuite, w.Refs)
	if err != nil {
		return err
	}
	to := make([]welcome.Recipient, len(devices))
	for i, d := range devices {
		to[i] = welcome.Recipient(d)
		if slices.ContainsFunc(to[:i], func(r welcome.Recipient) bool { return r.DID == d.DID && r.DeviceID == d.DeviceID }) {
			return invalid(Welcome, "names two KeyPackages of one device of %s; a signature key is one leaf (RFC 9420 §7.3)", d.DID)
		}
	}
	for _, did := range added {
		if !slices.ContainsFunc(to, func(r welcome.Recipient) bool { return r.DID == did }) {
			return invalid(Welcome, "names no KeyPackage of %s", did)
		}
	}
	return welcome.Deposit(ctx, tx, c.id, epoch, body, to)
}
