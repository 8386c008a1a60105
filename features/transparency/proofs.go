package transparency

import (
	"context"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"

	"mlsd/features/transparency/verifier"
	"mlsd/internal/errs"
)

// Inclusion proves that the entry seq is in the tree of the log's first size entries. It also
// returns the entry's leaf. hashed is as for Head. Errors: ErrRange, ErrNotReady, errors of the
// database.
func (s *Service) Inclusion(ctx context.Context, convo uuid.UUID, seq, size int64, hashed *int64) (leaf verifier.Hash,
	proof []verifier.Hash, err error) {
	err = s.prove(ctx, convo, hashed, func(r tlog.HashReader, end int64) error {
		if seq < 1 || seq > size || size > end {
			return ErrRange
		}
		leaves, err := r.ReadHashes([]int64{tlog.StoredHashIndex(0, seq-1)})
		if err != nil {
			return err
		}
		leaf = leaves[0]
		proof, err = tlog.ProveRecord(size, seq-1, r)
		return err
	})
	return leaf, proof, errs.Wrap(err, "prove an inclusion")
}

// Consistency proves that the log's first from entries are the beginning of its first size entries.
// hashed is as for Head. Errors: ErrRange, ErrNotReady, errors of the database.
func (s *Service) Consistency(ctx context.Context, convo uuid.UUID, from, size int64,
	hashed *int64) (proof []verifier.Hash, err error) {
	err = s.prove(ctx, convo, hashed, func(r tlog.HashReader, end int64) (err error) {
		if from < 1 || from > size || size > end {
			return ErrRange
		}
		proof, err = tlog.ProveTree(size, from, r)
		return err
	})
	return proof, errs.Wrap(err, "prove the consistency")
}

// prove calls use with the hashes of the whole log, and with the log's length. A proof reads as
// many rows of hashes as the tree has levels of tiles, and one more row for each side.
func (s *Service) prove(ctx context.Context, convo uuid.UUID, hashed *int64,
	use func(r tlog.HashReader, end int64) error) error {
	return s.with(ctx, convo, hashed, func(t *tree) error {
		r := storedHashes{ctx: ctx, q: s.cfg.DB, convo: convo, tail: t.tail, base: t.edge.Size - int64(len(t.tail))}
		return use(r, t.edge.Size)
	})
}
