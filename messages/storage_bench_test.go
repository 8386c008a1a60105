package messages_test

import (
	"fmt"
	"testing"

	"mlsd/events"
)

// BenchmarkStorage measures the bytes that a message of 1 KiB costs: WAL, full pages in the WAL,
// and disk for the message and for its event. 128 messages are in flight. It runs with a sequencer
// that moves the events, and without one. The index of the stream is written at the end. N is
// messages: use -benchtime 100000x.
func BenchmarkStorage(b *testing.B) {
	for _, convos := range []int{1, 1000} {
		for _, sequenced := range []bool{false, true} {
			b.Run(fmt.Sprintf("convos=%d/sequencer=%t", convos, sequenced), func(b *testing.B) {
				g := newSenders(b, convos, sequenced)
				g.send(b, 2000) // the tables are not empty when the measurement begins
				before := g.stored(b)
				b.ResetTimer()
				g.send(b, b.N)
				for waits := sequenced; waits; { // until all events are moved
					waits = g.stored(b).waiting > 0
				}
				if err := events.NewIndex(g.db).RunOnce(b.Context()); err != nil {
					b.Fatal(err)
				}
				after := g.stored(b)
				n := float64(b.N)
				b.ReportMetric(float64(after.wal-before.wal)/n, "WAL-bytes/message")
				b.ReportMetric(float64(after.images-before.images)/n, "full-pages/message")
				b.ReportMetric(float64(after.table-before.table)/n, "table-bytes/message")
				b.ReportMetric(float64(after.indexes-before.indexes)/n, "index-bytes/message")
				b.ReportMetric(float64(after.events-before.events)/n, "event-bytes/message")
				b.ReportMetric(float64(after.hot-before.hot)/float64(max(after.updates-before.updates, 1)), "HOT-share")
			})
		}
	}
}

// storage is what the server has written, and the sizes of the tables.
type storage struct {
	wal, images            int64 // bytes of WAL since the server was made; number of full pages
	table, indexes, events int64 // bytes
	updates, hot           int64 // of convos
	waiting                int64 // events
}

func (s *senders) stored(b *testing.B) (now storage) {
	b.Helper()
	conn, err := s.db.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(b.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		b.Fatal(err)
	}
	err = conn.QueryRow(b.Context(), `
		SELECT pg_current_wal_insert_lsn() - '0/0', (SELECT wal_fpi FROM pg_stat_wal), pg_table_size('messages'),
			pg_indexes_size('messages'),
			pg_total_relation_size('outbox')
				+ (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits WHERE inhparent IN
					('events'::regclass, 'convo_events'::regclass)),
			n_tup_upd, n_tup_hot_upd, (SELECT count(*) FROM outbox)
		FROM pg_stat_user_tables WHERE relname = 'convos'`).
		Scan(&now.wal, &now.images, &now.table, &now.indexes, &now.events, &now.updates, &now.hot, &now.waiting)
	if err != nil {
		b.Fatal(err)
	}
	return now
}
