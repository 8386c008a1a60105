package transparency_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// BenchmarkHeads measures what the heads piggybacked on answers and events cost for each message: in one
// convo with many messages between two heads, and in many convos with few. heads-us/message is the
// time of the rounds, here and in the database.
func BenchmarkHeads(b *testing.B) {
	for _, c := range []struct {
		name        string
		convos, per int
	}{{"hot", 1, 8192}, {"spread", 512, 8}} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b)
			convos := []uuid.UUID{w.convo}
			for len(convos) < c.convos {
				id := uuid.Must(uuid.NewV7())
				w.exec(`INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2,
						'did:plc:alice', 1, 1, now())`, id, id[:])
				convos = append(convos, id)
			}
			round := func() (took time.Duration) {
				for _, convo := range convos {
					w.AnswerHead(convo)
				}
				w.clock = w.clock.Add(5 * time.Second)
				begun := time.Now()
				for range c.per/2048 + 1 {
					if err := w.RunOnce(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				return time.Since(begun)
			}
			round() // the first one begins all trees
			var took time.Duration
			messages := 0
			for b.Loop() {
				w.exec(`
					INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, created_at)
					SELECT id, last_seq + n, 1, 'did:plc:alice', 1, decode(repeat(md5(n::text), 64), 'hex'), (last_seq + n)::text, '',
						'2026-11-22T09:30:00Z'
					FROM convos, generate_series(1, $1::bigint) n`, c.per)
				w.exec(`UPDATE convos SET last_seq = last_seq + $1`, c.per)
				messages += c.per * len(convos)
				took += round()
			}
			b.ReportMetric(float64(took.Microseconds())/float64(messages), "heads-us/message")
			for _, convo := range convos {
				if h := w.open(w.AnswerHead(convo)); h.Size*int64(len(convos)) != int64(messages) {
					b.Fatalf("the head has %d entries", h.Size)
				}
			}
			w.exec(`DELETE FROM messages`) // these entries have no events
			w.exec(`DELETE FROM convos WHERE id <> $1`, w.convo)
			w.exec(`UPDATE convos SET last_seq = 0`)
			w.exec(`DELETE FROM log_tiles`)
		})
	}
}
