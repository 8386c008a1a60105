package events_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/events"
	"mlsd/internal/failpoint"
	"mlsd/internal/failpoint/failpointtest"
	"mlsd/internal/nsid"
	"mlsd/internal/pgtest"
	"mlsd/messages"
	"mlsd/outbox"
)

// writer returns a log of messages on a node.
func (w *world) writer(n *node, faults *failpoint.Set) *messages.Log {
	return messages.NewLog(w.db, 0, uncounted{}, slog.New(slog.DiscardHandler), faults,
		messages.In(events.Stream{Hub: n.hub, Sequencer: n.seq}))
}

// ends returns the end of the stream, and how many rows wait in the outbox.
func (w *world) ends(t *testing.T) (head, waiting int64) {
	t.Helper()
	err := w.db.QueryRow(t.Context(), `SELECT head, (SELECT count(*) FROM outbox) FROM stream`).Scan(&head, &waiting)
	if err != nil {
		t.Fatal(err)
	}
	return head, waiting
}

// A message that is alone gets its place in its own transaction, unless that could break the order
// of a convo, a day, a generation, or what an older build believes. It then gets its place from the
// sequencer. Either way subscribers get it once.
func TestPlaceAtOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql    string // makes the stream what it is
		known  int64  // the newest place that the node has read, if it is not the end of the stream
		locked bool   // another transaction gives a place
		waits  bool
	}{
		"as usual": {},
		"an event waits": {waits: true,
			sql: `INSERT INTO outbox (kind, did, created_at) VALUES (6, 'did:plc:bob', now())`},
		"an event is below the floor": {
			sql: `WITH id AS (SELECT nextval('outbox_id_seq')) UPDATE stream SET floor = (SELECT * FROM id)`},
		"another server":       {sql: `UPDATE stream SET adopted_start = now()`, waits: true},
		"no server":            {sql: `UPDATE stream SET adopted_start = NULL`, waits: true},
		"another table":        {sql: `UPDATE stream SET adopted_table = 1`, waits: true},
		"another day":          {sql: `UPDATE stream SET day = day - 1`, waits: true},
		"the stream went back": {known: 5, waits: true},
		"an older build runs": {waits: true,
			sql: `INSERT INTO nodes VALUES (gen_random_uuid(), now(), now() + interval '1 minute', 'old', 2)`},
		"a build as this one": {
			sql: `INSERT INTO nodes VALUES (gen_random_uuid(), now(), now() + interval '1 minute', 'new', 3)`},
		"locked": {locked: true, waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, n, convo := newConvo(t, 3, alice) // the stream ends at 4
			if c.sql != "" {
				if _, err := w.db.Exec(t.Context(), c.sql); err != nil {
					t.Fatal(err)
				}
			}
			before, waiting := w.ends(t)
			sequenced := n.sequenced
			release := func() {}
			if c.locked {
				tx, err := w.db.Begin(t.Context())
				if err == nil {
					_, err = tx.Exec(t.Context(), `SELECT FROM stream FOR NO KEY UPDATE`)
				}
				if err != nil {
					t.Fatal(err)
				}
				release = func() { _ = tx.Rollback(t.Context()) }
			}
			if c.known > 0 {
				t.Cleanup(n.hub.Know(c.known))
			}
			sent, err := w.writer(n, nil).Send(t.Context(), draft(convo, alice, "k", "hello"))
			if err != nil || sent.Seq != 4 {
				t.Fatalf("%+v, %v", sent, err)
			}
			release()
			if counted := n.sequenced > sequenced; counted == c.waits {
				t.Errorf("the metric counts the event: %t", counted)
			}
			head, rows := w.ends(t)
			if placed := head == before+1 && rows == waiting; placed == c.waits {
				t.Errorf("placed %v: the stream went from %d to %d, the outbox from %d rows to %d", placed, before, head,
					waiting, rows)
			}
			if c.known == 0 {
				n.publish(t)
				s := n.subscribe(t, alice, 5)
				want(t, next(t, s, 1), "4")
				nothing(t, s)
			}
		})
	}
}

// Places are dense and in the order of each convo. Two nodes give them to messages that are alone and
// to batches, and a sequencer gives them in its steps; transactions are rolled back between.
func TestPlacesAreDense(t *testing.T) {
	t.Parallel()
	w := newWorld(t, pgtest.MaxConns(40))
	a, b := w.node(t), w.node(t)
	a.publish(t)
	convos := []uuid.UUID{w.convo(t, alice), w.convo(t, alice), w.convo(t, alice)}
	a.run(t)
	b.run(t)
	faults := failpoint.New()
	var all sync.WaitGroup
	var sent atomic.Int64
	for i, log := range []*messages.Log{w.writer(a, nil), w.writer(b, nil), w.writer(b, faults)} {
		rng := rand.New(rand.NewPCG(uint64(i), 5))
		all.Go(func() {
			for k := range 150 {
				convo := convos[rng.IntN(len(convos))]
				if i == 2 && k%5 == 0 {
					failpointtest.Arm(t, faults, failpoint.BeforeCommit, nsid.SendMessage, failpoint.Error)
				}
				switch _, err := log.Send(t.Context(), draft(convo, alice, fmt.Sprint(i, k), "hello")); {
				case err == nil:
					sent.Add(1)
				case !errors.Is(err, failpoint.ErrInjected):
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		for range 40 {
			w.must(t, convos[0], bob, outbox.Joined)
			w.must(t, convos[0], bob, outbox.Left)
		}
	})
	all.Wait()
	s := b.subscribe(t, alice, 1)
	last := map[uuid.UUID]int64{}
	for n := int64(0); n < sent.Load(); {
		e, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !e.Kind.LogEntry() {
			continue
		}
		n++
		if e.Seq != last[e.ConvoID]+1 {
			t.Fatalf("entry %d of a convo came after entry %d", e.Seq, last[e.ConvoID])
		}
		last[e.ConvoID] = e.Seq
	}
	var atOnce int64
	err := w.db.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE kind = 1 AND convo_ids IS NULL`).Scan(&atOnce)
	if err != nil || atOnce == 0 {
		t.Errorf("%d messages had rows of their own: %v", atOnce, err)
	}
}

// A step that waits for a place that a message is just getting continues after that place.
func TestStepWaitsForPlace(t *testing.T) {
	t.Parallel()
	w, n, convo := newConvo(t, 1, alice) // the stream ends at 2
	other := w.convo(t, bob)             // an event that waits
	if _, err := w.db.Exec(t.Context(), `DELETE FROM outbox`); err != nil {
		t.Fatal(err)
	}
	faults := failpoint.New()
	failpointtest.Arm(t, faults, failpoint.BeforeCommit, nsid.SendMessage, failpoint.Pause)
	var both sync.WaitGroup
	both.Go(func() {
		if _, err := w.writer(n, faults).Send(t.Context(), draft(convo, alice, "k", "hello")); err != nil {
			t.Error(err)
		}
	})
	<-faults.Reached(failpoint.BeforeCommit, nsid.SendMessage)
	w.say(t, other, bob, 1)
	both.Go(func() {
		if _, err := n.seq.Round(t.Context()); err != nil {
			t.Error(err)
		}
	})
	pgtest.AwaitLockWaits(t, w.db, 1)
	faults.Resume(failpoint.BeforeCommit, nsid.SendMessage)
	both.Wait()
	n.publish(t)
	rows, err := w.db.Query(t.Context(), `SELECT convo_id FROM events WHERE stream_seq > 2 ORDER BY stream_seq`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(got) != 2 || got[0] != convo || got[1] != other {
		t.Errorf("got %v, %v", got, err)
	}
}
