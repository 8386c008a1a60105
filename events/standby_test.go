package events_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/google/uuid"

	"mlsd/events"
	"mlsd/internal/await"
	"mlsd/internal/pgtest"
	"mlsd/internal/standby/standbytest"
	"mlsd/messages"
)

// A subscription that catches up reads its pages, and the log entries in them, from the standby. So
// it does behind a standby that does not go on: then it reads the primary.
func TestCatchUpFromStandby(t *testing.T) {
	t.Parallel()
	servers := pgtest.NewPair(t)
	w := &world{db: servers.Pool(pgtest.MaxConns(24))}
	w.log = messages.NewLog(w.db, 0, uncounted{}, slog.New(slog.DiscardHandler), nil)
	reads := standbytest.Reads(t, w.db, servers)
	n := w.node(t, func(c *events.HubConfig) { c.Reads = reads })
	n.publish(t)
	convo := w.convo(t, alice)
	w.sayTogether(t, alice, slices.Repeat([]uuid.UUID{convo}, 20)...)
	n.publish(t)
	n.hub.Forget(t, 1)

	behind := pgtest.Session(t, servers.Standby)
	scans := func() (n int64) { // of the index of the stream, on the standby
		t.Helper()
		err := behind.QueryRow(t.Context(),
			`SELECT coalesce(sum(idx_scan), 0) FROM pg_stat_user_tables WHERE relname ~ '^convo_events_2'`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var last int64
	catchUp := func() {
		t.Helper()
		s := n.subscribe(t, alice, 0)
		defer s.Close()
		want(t, next(t, s, 20), slices.Concat([]string{"alice joined"}, seqs(1, 19))...)
		e, err := s.Next(t.Context())
		if err != nil || brief(e) != "20" {
			t.Fatalf("%v, %v", e, err)
		}
		last = e.Number()
	}
	await.Until(t, "something is read from the standby", func() bool {
		if scans() > 0 {
			return true
		}
		catchUp()
		return false
	})
	if _, err := behind.Exec(t.Context(), `SELECT pg_wal_replay_pause()`); err != nil {
		t.Fatal(err)
	}
	w.sayTogether(t, alice, convo, convo)
	n.publish(t)
	n.hub.Forget(t, 1)
	s := n.subscribe(t, alice, last+1)
	want(t, next(t, s, 2), "21", "22")
}

func seqs(from, to int) (texts []string) {
	for seq := from; seq <= to; seq++ {
		texts = append(texts, fmt.Sprint(seq))
	}
	return texts
}
