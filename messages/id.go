package messages

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// A message id is a UUIDv7 (RFC 9562 §5.7) computed from the row's own (convo_id, seq, created_at), so it needs neither a
// column nor an index: the 62 bits of rand_b are seq plus a digest of the convo id, which seqOf takes back. Within a convo ids
// differ because seqs do; between convos they are as unlikely to meet as random ones.

const randBBits = 62

// idOf returns the id of the message at seq of convo.
func idOf(convo uuid.UUID, seq int64, at time.Time) uuid.UUID {
	digest := sha256.Sum256(convo[:])
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[:8], uint64(at.UnixMilli())<<16|uint64(binary.BigEndian.Uint16(digest[8:])&0x0fff))
	id[6] |= 0x70 // version 7
	binary.BigEndian.PutUint64(id[8:], (binary.BigEndian.Uint64(digest[:])+uint64(seq))&(1<<randBBits-1))
	id[8] |= 0x80 // variant
	return id
}

// seqOf returns the only seq of convo whose message may have this id. Whether it does is for idOf to say.
func seqOf(convo, id uuid.UUID) int64 {
	digest := sha256.Sum256(convo[:])
	seq := (binary.BigEndian.Uint64(id[8:]) - binary.BigEndian.Uint64(digest[:])) & (1<<randBBits - 1)
	return int64(seq)
}

// timeOf returns the time in a message id.
func timeOf(id uuid.UUID) time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
}
