package messages_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/internal/localpg"
	"mlsd/internal/pgpool"
	"mlsd/internal/pgtest"
	"mlsd/internal/testdir"
	"mlsd/messages"
)

// BenchmarkLife measures what a message of 1 KiB costs from its append to the reuse of its space,
// on a PostgreSQL with the settings of mlsd's own. It reports the bytes of WAL per message when
//   - it is appended, alone or as one of 128 in flight,
//   - a vacuum freezes it,
//   - the sweeper deletes it,
//   - a vacuum frees its space.
//
// A checkpoint precedes each step, because days lie between the steps. So the first change of a page
// writes the whole page into the WAL. The benchmark also reports how many transaction ids (XIDs) an
// append takes. N is messages: use -benchtime 20000x.
func BenchmarkLife(b *testing.B) {
	l := newLife(b)
	l.send(b, 2000) // the tables are not empty when the measurement begins
	l.step(b, "append", b.N, func() { l.send(b, b.N) })
	l.many = 1
	l.step(b, "append-alone", b.N, func() { l.send(b, b.N) })
	sent := int(l.sent.Load())
	l.step(b, "freeze", sent, func() { l.exec(b, `VACUUM (FREEZE) messages`) })
	l.step(b, "delete", sent, func() { l.expire(b, sent) })
	l.step(b, "free", sent, func() { l.exec(b, `VACUUM messages`) })
	b.ReportMetric(0, "ns/op")
}

// life is senders on a PostgreSQL of their own.
type life struct{ *senders }

func newLife(b *testing.B) life {
	b.Helper()
	downloads, err := testdir.Downloads()
	if err != nil {
		b.Fatal(err)
	}
	server, err := localpg.Start(b.Context(), localpg.Config{DataDir: pgtest.DataDir(b), DownloadDir: downloads,
		Settings: map[string]string{"autovacuum": "off", "max_wal_size": "8GB"}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := server.Stop(context.Background()); err != nil {
			b.Error(err)
		}
	})
	cfg, err := pgpool.Config(server.ConnString(localpg.Database))
	if err != nil {
		b.Fatal(err)
	}
	cfg.MaxConns = 24
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = "0"
	db, err := pgxpool.NewWithConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(db.Close)
	return life{newSendersOn(b, db, 1000, false)}
}

func (l life) exec(b *testing.B, sql string) {
	b.Helper()
	if _, err := l.db.Exec(b.Context(), sql); err != nil {
		b.Fatal(err)
	}
}

// expire deletes the messages that were sent.
func (l life) expire(b *testing.B, sent int) {
	b.Helper()
	sweeper := messages.NewSweeper(l.db, time.Hour, func(int64) {}, nil).Restless()
	sweeper.InADay()
	if n, err := sweeper.RunOnce(b.Context()); err != nil || n != int64(sent) {
		b.Fatalf("%d messages of %d were deleted: %v", n, sent, err)
	}
}

// step takes a step with n messages, and reports what it cost per message.
func (l life) step(b *testing.B, name string, n int, do func()) {
	b.Helper()
	l.exec(b, `CHECKPOINT`)
	walBefore, xidsBefore := l.written(b)
	do()
	wal, xids := l.written(b)
	b.ReportMetric(float64(wal-walBefore)/float64(n), name+"-WAL-bytes/message")
	b.ReportMetric(float64(xids-xidsBefore)/float64(n), name+"-XIDs/message")
}

// written returns how many bytes of WAL and how many XIDs the server has used.
func (l life) written(b *testing.B) (wal, xids int64) {
	b.Helper()
	err := l.db.QueryRow(b.Context(), `
		SELECT pg_current_wal_insert_lsn() - '0/0', pg_snapshot_xmax(pg_current_snapshot())::text::bigint`).
		Scan(&wal, &xids)
	if err != nil {
		b.Fatal(err)
	}
	return wal, xids
}
