package messages

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
)

// held is how the statement looks for a draft's key.
const held = `SELECT * FROM messages
			WHERE convo_id = d.convo_id AND sender_did = d.sender_did AND idempotency_key = d.key AND kind <> 3 LIMIT 1`

// BenchmarkRecord says what the idempotency record costs a message: each is sent with it, and then another one without its look-up
// and its index. The two take turns, so that the machine's moods are shared.
func BenchmarkRecord(b *testing.B) {
	if !strings.Contains(appendDrafts, held) {
		b.Fatal("the statement looks for keys in another way")
	}
	with := newLogBench(b, appendDrafts)
	without := newLogBench(b, strings.Replace(appendDrafts, held, `SELECT * FROM messages WHERE false`, 1))
	if _, err := without.db.Exec(b.Context(), `DROP INDEX messages_idempotency_key`); err != nil {
		b.Fatal(err)
	}
	for i := range 200 { // warm up
		with.send(b, i)
		without.send(b, i)
	}
	var a, o time.Duration
	b.ResetTimer()
	for i := range b.N {
		a += with.send(b, 200+i)
		o += without.send(b, 200+i)
	}
	b.ReportMetric(float64(a)/float64(o), "with/without")
	b.ReportMetric(float64(a.Microseconds())/float64(b.N), "µs-with")
}

// logBench is a convo with one member, and the statements that write to it.
type logBench struct {
	db    *pgxpool.Pool
	convo uuid.UUID
	write string
}

func newLogBench(b *testing.B, write string) *logBench {
	b.Helper()
	l := &logBench{db: pgtest.Database(b), convo: uuid.Must(uuid.NewV7()), write: write}
	_, err := l.db.Exec(b.Context(), `
		WITH convo AS (
			INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2, 'did:plc:alice', 1, 1, now())
		)
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, 'did:plc:alice', 'creator', now(), 0)`, l.convo, l.convo[:])
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// send writes one message of 1 KiB in a transaction of its own and returns how long that took.
func (l *logBench) send(b *testing.B, i int) time.Duration {
	b.Helper()
	body := mlstest.Message(l.convo[:], 1, fmt.Sprintf("%01024d", i))
	key := fmt.Sprintf("sha256:%064x", i)
	hash := make([]byte, 32)
	begun := time.Now()
	err := pgx.BeginFunc(b.Context(), l.db, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(lockConvos, []uuid.UUID{l.convo}, []string{"did:plc:alice"})
		batch.Queue(l.write, []uuid.UUID{l.convo}, [][]byte{l.convo[:]}, []string{"did:plc:alice"}, []string{key}, [][]byte{hash},
			[]int16{1}, []int64{1}, [][]byte{body}, []*string{nil}, []*string{nil}, int64(0))
		return tx.SendBatch(b.Context(), batch).Close()
	})
	if err != nil {
		b.Fatal(err)
	}
	return time.Since(begun)
}
