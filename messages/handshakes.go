package messages

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/errs"
	"mlsd/internal/pgpool"
	"mlsd/mls"
)

// CommitSeq returns the seq of the commit that creates epoch, or 0 if the log has no such commit.
func CommitSeq(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, epoch int64) (seq int64, err error) {
	err = q.QueryRow(ctx, `SELECT seq FROM messages WHERE convo_id = $1 AND kind = 3 AND epoch = $2`, convo,
		epoch).Scan(&seq)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return seq, errs.Wrap(err, "find the commit of epoch %d", epoch)
}

// Bounds of the search for the proposals that a commit refers to.
const (
	proposalsAmong = 10_000  // how many of the newest entries are searched
	proposalBytes  = 4 << 20 // total size of the proposals; the newest come first
	maxProposals   = 1_000
)

// Proposal is a proposal of the log that was sent in clear.
type Proposal struct {
	*mls.ProposalMessage
	Sender syntax.DID // the account that sent it; nobody has checked yet whose leaf it names
}

// Proposals returns the proposals of epoch that were sent in clear. It searches as far back as a
// commit can reasonably refer.
func Proposals(ctx context.Context, q pgpool.Queryer, convo uuid.UUID, epoch,
	lastSeq int64) (found []Proposal, err error) {
	rows, err := q.Query(ctx, `
		SELECT m.body, m.sender_did
		FROM (
			SELECT seq, sum(octet_length(body)) OVER (ORDER BY seq DESC) AS total
			FROM messages WHERE convo_id = $1 AND seq > $3 AND kind = 2 AND epoch = $2
			ORDER BY seq DESC LIMIT $5
		) newest
		CROSS JOIN LATERAL (SELECT body, sender_did FROM messages WHERE convo_id = $1 AND seq = newest.seq LIMIT 1) m
		WHERE newest.total <= $4`, convo, epoch, lastSeq-proposalsAmong, proposalBytes, maxProposals)
	if err != nil {
		return nil, fmt.Errorf("read proposals: %w", err)
	}
	var body []byte
	var sender syntax.DID
	_, err = pgx.ForEachRow(rows, []any{&body, &sender}, func() error {
		p, err := mls.ParseProposal(bytes.Clone(body))
		if errors.Is(err, mls.ErrUnsupported) {
			return nil // encrypted
		}
		if err != nil {
			return fmt.Errorf("a proposal in the log: %w", err)
		}
		found = append(found, Proposal{p, sender})
		return nil
	})
	return found, errs.Wrap(err, "read proposals")
}
