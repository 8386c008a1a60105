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
	// Interval is how often RunOnce is to be called.
	Interval = time.Second
	// piggybackEvery is the shortest time between two readings of a log for heads piggybacked on answers and
	// events. A client that must know now calls getLogHead.
	piggybackEvery = 5 * time.Second
	// roundConvos are the convos whose logs one round reads.
	roundConvos = 256
	// maxRounds bounds the readings of one RunOnce.
	maxRounds = 4
	// maxWanted bounds the convos that wait for a head.
	maxWanted = maxTrees
)

// roundBounds are what one round reads.
var roundBounds = bounds{entries: 512, bytes: 1 << 20, sum: 64 << 20}

// AnswerHead returns the newest head that the node has signed of a convo, or "", and makes the next round
// prepare another one. It does not wait. The head can be seconds old.
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
		return "" // somebody works on it
	}
	if !s.current(t) {
		return ""
	}
	return t.head.Text
}

// EventHead returns the head that goes out with the event of an entry, or "". It does not say more than
// the events up to this one: a reader who was removed with it learns nothing of what came later. Each
// head goes out with one event. Heads are made only for convos of which somebody has asked this node
// for one.
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

// current reports whether a tree has a head that is signed with the keys of now.
func (s *Service) current(t *tree) bool { return t.head != nil && t.head.ring == s.ring.Load() }

func (s *Service) want(convo uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.wanted) < maxWanted {
		s.wanted[convo] = struct{}{}
	}
}

// RunOnce signs heads of the convos for which AnswerHead or EventHead was called, if their log was not read
// for some time and has grown.
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
				return nil // the next round finds the generation
			}
			return fmt.Errorf("prepare heads: %w", err)
		}
	}
	return nil
}

// due takes up to a round of wanted trees, and holds them. A tree that was looked at just now stays
// wanted, unless the keys have changed since: also one whose head could not be made.
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

// round brings trees forward and signs those that have their whole log, in one statement if they were
// known before.
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
			t.forget() // another round begins it anew
			s.want(t.convo)
		} else if err != nil {
			if err := s.skip(ctx, conn, t, "cannot prepare a head", err); err != nil {
				return err
			}
		}
	}
	return nil
}

// forward takes what was read of a log into its tree, and signs the tree if it has the whole log.
func (s *Service) forward(ctx context.Context, conn *pgxpool.Conn, t *tree, p *part) error {
	if err := s.accept(ctx, conn, t, p, roundBounds.entries); err != nil {
		return err
	}
	switch {
	case t.edge.Size < p.last, p.cut: // the next round goes on
		t.looked = time.Time{}
		s.want(t.convo)
	case !s.current(t) || t.head.Size != t.edge.Size:
		return s.sign(ctx, conn, t)
	}
	return nil
}

// skip leaves a tree out that has failed, so that the others are done. It returns the error if the
// others would fail too.
func (s *Service) skip(ctx context.Context, conn *pgxpool.Conn, t *tree, what string, err error) error {
	t.forget()
	if ctx.Err() != nil || conn.Conn().IsClosed() {
		return err
	}
	if !errors.Is(err, ErrNotReady) { // that has been logged
		s.log.Error(what, "convo", t.convo, "err", err)
	}
	return nil
}
