package standby

import (
	"errors"
	"testing"
	"time"

	"mlsd/internal/pgtest"
)

// A read that arrives while a question runs waits for the next question: what was committed between
// the two is not in the answer to the first.
func TestReadWaitsForItsOwnQuestion(t *testing.T) {
	t.Parallel()
	r := New(Config{})
	earlier, own := &session{}, &session{}
	r.state, r.asked = used, &round{done: make(chan struct{})}
	got := make(chan *session, 1)
	go func() { got <- r.await(t.Context()) }()
	<-r.wake // the read has arrived
	r.mu.Lock()
	r.asked.end(earlier)
	r.next.end(own)
	r.mu.Unlock()
	if s := <-got; s != own {
		t.Error("the read uses the answer to an earlier question")
	}
}

// A server that is no standby any more is noticed by the next question, even if it has all the WAL
// that is asked for.
func TestPromotedIsNoStandby(t *testing.T) {
	t.Parallel()
	s := &session{standby: pgtest.Session(t, pgtest.Database(t).Config().ConnString())}
	if lag, err := s.lacks(t.Context(), 0); !errors.Is(err, ErrNotStandby) {
		t.Errorf("lacks %d bytes, %v", lag, err)
	}
}

// G13: a question begins no sooner than pace after the question before, however quick that was.
func TestQuestionsKeepTheirPace(t *testing.T) {
	t.Parallel()
	for _, took := range []time.Duration{0, 50 * time.Microsecond, pace / 2, pace, 20 * pace} {
		if next := took + max(0, rest(took)); next < pace || next > max(took, pace) {
			t.Errorf("after a question that took %s the next begins %s after it began", took, next)
		}
	}
}
