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
// next. It is the compare-and-swap of promise 3, under the row lock that c holds. It does not change the roster.
func (c *locked) advance(ctx context.Context, tx pgx.Tx, by syntax.DID, p Proposed, may rights) (Advanced, error) {
	h, err := c.checkCommit(ctx, tx, p.Commit)
	if err != nil {
		return Advanced{}, err
	}
	v, err := c.judge(ctx, tx, by, p, h, may)
	if err != nil {
		return Advanced{}, err
	}
	next := c.epoch + 1
	seq, _, err := messages.AppendCommit(ctx, tx, messages.CommitEntry{
		ConvoID: c.id, Sender: by, Key: p.Key, Hash: p.Hash, Epoch: next, Body: p.Commit,
	})
	if err != nil {
		return Advanced{}, fmt.Errorf("append the commit: %w", err)
	}
	batch := &pgx.Batch{}
	batch.Queue(`UPDATE convos SET epoch = $2, commit_level = $3 WHERE id = $1`, c.id, next, v.level)
	c.won(batch, by)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return Advanced{}, fmt.Errorf("advance the epoch: %w", err)
	}
	if err := keepGroup(ctx, tx, c.id, next, v.group, p.GroupInfo); err != nil {
		return Advanced{}, err
	}
	if err := welcome.SupersedeDevices(ctx, tx, c.id, v.gone()); err != nil {
		return Advanced{}, err
	}
	if p.Welcome != nil {
		if err := deposit(ctx, tx, *c, by, next, p.Welcome, may.adds, v); err != nil {
			return Advanced{}, err
		}
	}
	c.epoch, c.lastSeq = next, seq
	return Advanced{Epoch: next, Seq: seq}, nil
}

// checkCommit reads the commit's header: what it is, of which group, made in which epoch. Then it is the caller's turn, unless
// the next commit is reserved for another.
func (c *locked) checkCommit(ctx context.Context, tx pgx.Tx, commit []byte) (mls.Header, error) {
	h, err := mls.ParseHeader(commit)
	switch {
	case err != nil:
		return h, invalid(Commit, "%v", err)
	case h.ContentType != mls.ContentTypeCommit:
		return h, invalid(Commit, "content_type is %s (RFC 9420 §6)", h.ContentType)
	case !bytes.Equal(h.GroupID, c.groupID):
		return h, invalid(Commit, "group_id is of another group")
	case int64(h.Epoch) != c.epoch:
		won, err := messages.CommitSeq(ctx, tx, c.id, int64(h.Epoch)+1)
		if err != nil {
			return h, err
		}
		return h, &messages.EpochMismatchError{Epoch: int64(h.Epoch), Current: c.epoch, WonBy: won}
	case c.reserved != nil:
		return h, &ReservedError{Epoch: c.epoch, Left: *c.reserved}
	case c.epoch == mls.MaxEpoch:
		return h, invalid(Commit, "epoch is the last one that can be stored")
	}
	return h, nil
}

// deposit routes a Welcome to the devices whose KeyPackages it names, which are used up by it. Each added member must be
// reached, and nobody else, except that its maker may bring in other devices of its own; and it must fit what is known of the
// commit.
func deposit(ctx context.Context, tx pgx.Tx, c locked, by syntax.DID, epoch int64, body []byte, added []syntax.DID, v verdict) error {
	w, err := mls.ParseWelcome(body)
	if err != nil {
		return invalid(Welcome, "%v", err)
	}
	if int32(w.CipherSuite) != c.cipherSuite {
		return invalid(Welcome, "cipher_suite is %s", w.CipherSuite)
	}
	if most := (len(added) + 1) * maxDevices; len(w.Refs) > most {
		return invalid(Welcome, "names more than %d KeyPackages for so few people", most)
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
	if err := v.checkRecipients(by, to); err != nil {
		return err
	}
	return welcome.Deposit(ctx, tx, c.id, epoch, body, to)
}
