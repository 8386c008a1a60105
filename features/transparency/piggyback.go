package transparency

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// Interval is how often RunOnce should be called.
	Interval = time.Second
	// piggybackEvery is the shortest time between two reads of a log for heads that are piggybacked
	// on answers and events. A client that needs the head at once calls getLogHead.
	piggybackEvery = 5 * time.Second
	// roundConvos is how many convos' logs one round reads.
	roundConvos = 256
	// maxRounds bounds the rounds of one RunOnce.
	maxRounds = 4
	// maxWanted bounds the convos that wait for a head.
	maxWanted = maxTrees
)

// roundBounds bound what one round reads.
var roundBounds = bounds{entries: 512, bytes: 1 << 20, sum: 64 << 20}

// AnswerHead returns the newest head of a convo that the node has signed, or "". It makes the next
// round prepare another head. It does not wait. The head can be seconds old.
func (s *Service) AnswerHead(convo uuid.UUID) string {
	s.want(convo)
	t, ok := s.trees.Get(convo)
	if !ok {
		return ""
	}
	select {
	case t.lock <- struct{}{}:
		defer t.release()
	default:
		return "" // another goroutine works on the tree
	}
	if !s.current(t) {
		return ""
	}
	return t.head.Text
}

// EventHead returns the head that goes out with the event of an entry, or "". The head covers no
// entry after this event, so a reader who was removed with the event learns nothing of later
// entries. Each head goes out with one event. Heads are made only for convos whose head somebody
// has requested from this node.
func (s *Service) EventHead(convo uuid.UUID, seq int64) string {
	t, ok := s.trees.Get(convo)
	if !ok {
		return ""
	}
	s.want(convo)
	select {
	case t.lock <- struct{}{}:
		defer t.release()
	default:
		return ""
	}
	if !s.current(t) || t.head.Size > seq || t.onEvent != 0 && t.onEvent != seq {
		return ""
	}
	t.onEvent = seq // the event is encoded once for each form of stream
	return t.head.Text
}

// current reports whether a tree has a head that the present keys have signed.
func (s *Service) current(t *tree) bool { return t.head != nil && t.head.ring == s.ring.Load() }

func (s *Service) want(convo uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.wanted) < maxWanted {
		s.wanted[convo] = struct{}{}
	}
}

// RunOnce signs heads of the convos for which AnswerHead or EventHead was called, if their log has
// grown and was not read for some time.
func (s *Service) RunOnce(ctx context.Context) error {
	for range maxRounds {
		trees := s.due()
		if len(trees) == 0 {
			return nil
		}
		err := s.round(ctx, trees)
		for _, t := range trees {
			t.release()
		}
		if err != nil {
			if errors.Is(err, ErrNotReady) {
				return nil // the next round reads the generation
			}
			return fmt.Errorf("prepare heads: %w", err)
		}
	}
	return nil
}

// due acquires wanted trees, at most as many as a round reads. A tree that was read just now stays
// wanted, even if its head could not be made, unless the keys have changed since.
func (s *Service) due() (trees []*tree) {
	s.mu.Lock()
	wanted := slices.Collect(maps.Keys(s.wanted))
	s.mu.Unlock()
	now := s.cfg.Now()
	var taken []uuid.UUID
	for _, convo := range wanted {
		if len(trees) == roundConvos {
			break
		}
		t := s.treeOf(convo)
		select {
		case t.lock <- struct{}{}:
		default:
			continue
		}
		if now.Sub(t.looked) < piggybackEvery && (t.head == nil || s.current(t)) {
			t.release()
			continue
		}
		t.looked = now
		trees, taken = append(trees, t), append(taken, convo)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, convo := range taken {
		delete(s.wanted, convo)
	}
	return trees
}

// round adds new entries to trees and signs complete trees. If the trees are known already, it
// reads all of them in one statement.
func (s *Service) round(ctx context.Context, trees []*tree) error {
	conn, err := s.cfg.DB.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	generation, err := s.begun(ctx, conn)
	if err != nil {
		return err
	}
	known := make([]*tree, 0, len(trees))
	for _, t := range trees {
		if !t.known || t.generation != generation {
			if err := begin(ctx, conn, t); err != nil {
				if err := s.skip(ctx, conn, t, "cannot prepare a head", err); err != nil {
					return err
				}
				continue
			}
			t.generation = generation
		}
		known = append(known, t)
	}
	parts, err := load(ctx, conn, known, roundBounds)
	if err != nil {
		return err
	}
	if err := makeTags(ctx, conn, parts); err != nil {
		return err
	}
	for _, t := range known {
		p := parts[t.convo]
		if p == nil {
			s.trees.Remove(t.convo)
			continue
		}
		if err := s.forward(ctx, conn, t, p); errors.Is(err, errChanged) {
			t.forget() // another round reads it from the database
			s.want(t.convo)
		} else if err != nil {
			if err := s.skip(ctx, conn, t, "cannot prepare a head", err); err != nil {
				return err
			}
		}
	}
	return nil
}

// forward adds the entries of a part to the tree, and signs the tree if it has the whole log.
func (s *Service) forward(ctx context.Context, conn *pgxpool.Conn, t *tree, p *part) error {
	if err := s.accept(ctx, conn, t, p, roundBounds.entries); err != nil {
		return err
	}
	switch {
	case t.edge.Size < p.last, p.cut: // the next round reads the rest
		t.looked = time.Time{}
		s.want(t.convo)
	case !s.current(t) || t.head.Size != t.edge.Size:
		return s.sign(ctx, conn, t)
	}
	return nil
}

// skip leaves out a tree that has failed, so that the others are done. It returns the error if the
// others would fail too.
func (s *Service) skip(ctx context.Context, conn *pgxpool.Conn, t *tree, what string, err error) error {
	t.forget()
	if ctx.Err() != nil || conn.Conn().IsClosed() {
		return err
	}
	if !errors.Is(err, ErrNotReady) { // the cause was logged already
		s.log.Error(what, "convo", t.convo, "err", err)
	}
	return nil
}
