package messages

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// A message id is a UUIDv7 (RFC 9562 §5.7) that is computed from the row's convo_id, seq and
// created_at, so the id needs neither a column nor an index. Its 62 bits rand_b are the sum of seq
// and a digest of the convo id, so seq can be computed from the id. Within a convo, ids differ
// because seqs differ. Ids of different convos are as unlikely to collide as random ids.

const randBBits = 62

// seqs turns the seqs of one convo into ids and back.
type seqs struct{ digest [sha256.Size]byte }

func seqsOf(convo uuid.UUID) seqs { return seqs{sha256.Sum256(convo[:])} }

// id returns the id of the message at seq.
func (s *seqs) id(seq int64, at time.Time) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|uint64(binary.BigEndian.Uint16(s.digest[8:])&0x0fff))
	id[6] |= 0x70 // version 7
	binary.BigEndian.PutUint64(id[8:], (binary.BigEndian.Uint64(s.digest[:])+uint64(seq))&(1<<randBBits-1))
	id[8] |= 0x80 // variant
	return id
}

// seq returns the only seq whose message can have this id. The caller computes the id of that
// message with s.id, and compares.
func (s *seqs) seq(id uuid.UUID) int64 {
	return int64((binary.BigEndian.Uint64(id[8:]) - binary.BigEndian.Uint64(s.digest[:])) & (1<<randBBits - 1))
}

// idOf returns the id of the message at seq of convo.
func idOf(convo uuid.UUID, seq int64, at time.Time) uuid.UUID {
	s := seqsOf(convo)
	return s.id(seq, at)
}

// timeOf returns the time in a message id.
func timeOf(id uuid.UUID) time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
}
