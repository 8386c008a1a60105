package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mlsd/api/mlsapi"
	"mlsd/internal/pgtest"
)

// sender sends one message after the other. Like a client, it keeps what it sent and the answers.
type sender struct {
	*user
	convo *convo
	sent  []*sending
}

type sending struct {
	request
	ciphertext []byte
	ack        []byte // the answer; nil if there was none
}

// sendUntilKilled sends until the server is gone, and reports every answer.
func (s *sender) sendUntilKilled(round int, acknowledged func()) error {
	for {
		in := s.message(s.convo, fmt.Sprint(s.did(), round, len(s.sent)))
		m := &sending{request: s.procedure(mlsapi.NSIDSendMessage, in), ciphertext: in.Ciphertext}
		s.sent = append(s.sent, m)
		a, err := m.send()
		if err != nil {
			return nil
		}
		if a.status != http.StatusOK {
			return fmt.Errorf("status %d: %s", a.status, a.body)
		}
		m.ack = a.body
		acknowledged()
	}
}

// The server is killed at random moments while four members send to one convo. An acknowledged
// message is in the log exactly once and unchanged. Any other is there at most once, and exactly
// once after a retry.
func TestKillAtRandom(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 0))

	w, dir := newWorld(t), pgtest.DataDir(t)
	server := w.spawn(t, dir)
	users := []*user{w.user(), w.user(), w.user(), w.user()}
	c := users[0].create(users[1:]...)
	senders := make([]*sender, len(users))
	for i, u := range users {
		senders[i] = &sender{user: u, convo: c}
	}
	for round := range 4 {
		after := 1 + random.Int64N(150)
		pause := time.Duration(random.Int64N(int64(2 * time.Millisecond)))
		t.Logf("round %d: kill %v after %d acknowledgements", round, pause, after)
		killDuringSends(t, server, senders, round, after, pause)
		server = w.spawn(t, dir)
		lost := retryUnanswered(w, senders)
		t.Logf("round %d: %d were not acknowledged; %d of those had been stored", round, lost.unacknowledged, lost.stored)
		w.wantSound()
	}
}

// killDuringSends lets all senders send, and kills the server a while after a number of answers.
func killDuringSends(t *testing.T, server *child, senders []*sender, round int, after int64, pause time.Duration) {
	t.Helper()
	var count atomic.Int64
	enough := make(chan struct{})
	var all sync.WaitGroup
	for _, s := range senders {
		all.Go(func() {
			if err := s.sendUntilKilled(round, func() {
				if count.Add(1) == after {
					close(enough)
				}
			}); err != nil {
				t.Errorf("%s: %v", s.did(), err)
			}
		})
	}
	select {
	case <-enough:
	case <-time.After(deadline):
		t.Errorf("%d acknowledgements in %v", count.Load(), deadline)
	}
	<-time.After(pause) // the random moment
	server.kill()
	all.Wait()
}

type unacknowledged struct{ unacknowledged, stored int }

// retryUnanswered compares the log with the answers, retries the messages without one, and compares
// again.
func retryUnanswered(w *world, senders []*sender) (n unacknowledged) {
	w.t.Helper()
	before := places(w, senders)
	for _, s := range senders {
		for _, m := range s.sent {
			at, stored := before[string(m.ciphertext)]
			if m.ack != nil {
				if !stored || read[mlsapi.SendMessageOutput](w.t, m.ack).MessageID != at.ID {
					w.t.Fatalf("an acknowledged message is not in the log: %s", m.ack)
				}
				continue
			}
			retry := m.must()
			m.ack = retry.ok()
			n.unacknowledged++
			if stored {
				n.stored++
			}
			if retry.replayed() != stored {
				w.t.Errorf("marked as a replay: %t, stored before the retry: %t", retry.replayed(), stored)
			}
		}
		last := s.sent[len(s.sent)-1]
		if again := last.must(); !bytes.Equal(again.ok(), last.ack) || !again.replayed() {
			w.t.Errorf("the retry got %s (replay: %t), the first answer was %s", again.body, again.replayed(), last.ack)
		}
	}
	after := places(w, senders)
	for _, s := range senders {
		for _, m := range s.sent {
			if acked := read[mlsapi.SendMessageOutput](w.t, m.ack); after[string(m.ciphertext)].ID != acked.MessageID ||
				after[string(m.ciphertext)].Seq != *acked.Seq {
				w.t.Fatalf("the log does not have what was acknowledged: %s", m.ack)
			}
			delete(after, string(m.ciphertext))
		}
	}
	if len(after) > 0 {
		w.t.Errorf("%d messages that were not sent", len(after))
	}
	return n
}

// places returns each message of the log by its ciphertext, which must be in the log once.
func places(w *world, senders []*sender) map[string]mlsapi.MessageView {
	w.t.Helper()
	found := map[string]mlsapi.MessageView{}
	for _, m := range senders[0].log(senders[0].convo) {
		if twice, ok := found[string(m.Ciphertext)]; ok {
			w.t.Fatalf("one message at seq %d and %d", twice.Seq, m.Seq)
		}
		found[string(m.Ciphertext)] = m
	}
	return found
}
