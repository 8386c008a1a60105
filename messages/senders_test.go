package messages_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"mlsd/events"
	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/internal/pgtest"
	"mlsd/messages"
	"mlsd/mls"
)

type unseen struct{}

func (unseen) Leading(bool)                 {}
func (unseen) Sequenced(int, time.Duration) {}
func (unseen) Published(int, time.Duration) {}
func (unseen) CatchUp(int)                  {}
func (unseen) FellBehind()                  {}

// senders are callers that send to some convos.
type senders struct {
	many   int
	db     *pgxpool.Pool
	log    *messages.Log
	convos []uuid.UUID
	wake   func()
	sent   atomic.Int64
}

func newSenders(b *testing.B, convos int, sequenced bool) *senders {
	b.Helper()
	return newSendersOn(b, pgtest.Database(b, pgtest.MaxConns(24)), convos, sequenced)
}

func newSendersOn(b *testing.B, db *pgxpool.Pool, convos int, sequenced bool) *senders {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	s := &senders{many: 128, db: db, log: messages.NewLog(db, 0, uncounted{}, log, nil), wake: func() {}}
	for range convos {
		s.convos = append(s.convos, newConvo(b, db))
	}
	if sequenced {
		s.sequence(b)
	}
	return s
}

// sequence starts a sequencer and a hub.
func (s *senders) sequence(b *testing.B) {
	b.Helper()
	db, log := s.db, slog.New(slog.DiscardHandler)
	hub := events.NewHub(events.HubConfig{DB: db, Log: log, Metrics: unseen{}, Presence: events.NewPresence(db, log)})
	seq := events.NewSequencer(events.SequencerConfig{DB: db, Log: log, Metrics: unseen{}, Retention: time.Hour,
		Moved: hub.Grown})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { hub.Run(ctx) })
	running.Go(func() { seq.Run(ctx) })
	running.Go(func() { events.Listen(ctx, hub, seq) })
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	s.wake = seq.Wake
}

func newConvo(b *testing.B, db *pgxpool.Pool) uuid.UUID {
	b.Helper()
	id := uuid.Must(uuid.NewV7())
	_, err := db.Exec(b.Context(), `
		WITH convo AS (
			INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, created_at) VALUES ($1, $2, 'did:plc:alice', 1,
				1, now())
		)
		INSERT INTO members (convo_id, did, role, joined_at, joined_seq) VALUES ($1, 'did:plc:alice', 'creator', now(), 0)`,
		id, id[:])
	if err != nil {
		b.Fatal(err)
	}
	return id
}

// send sends n messages of 1 KiB, and returns how long that took.
func (s *senders) send(b *testing.B, n int) time.Duration {
	b.Helper()
	begun := time.Now()
	var left atomic.Int64
	left.Store(int64(n))
	var sending sync.WaitGroup
	for range s.many {
		sending.Go(func() {
			for left.Add(-1) >= 0 {
				i := s.sent.Add(1)
				convo := s.convos[int(i)%len(s.convos)]
				_, err := s.log.Send(b.Context(), messages.Draft{
					ConvoID: convo, GroupID: convo[:], Sender: alice, Key: fmt.Sprintf("%036d", i), Kind: mls.ContentTypeApplication,
					Epoch: 1,
					Body:  mlstest.Message(convo[:], 1, string(make([]byte, 1024))),
					Hash:  idem.Content{{Name: "ciphertext", JSON: fmt.Appendf(nil, "%d", i)}}.Hash(),
				})
				if err != nil {
					b.Error(err)
					return
				}
				s.wake()
			}
		})
	}
	sending.Wait()
	return time.Since(begun)
}
