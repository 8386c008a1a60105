package messages

import (
	"context"
	"hash/maphash"
	"runtime"
	"sync"
	"time"

	"github.com/google/uuid"

	"mlsd/internal/batch"
)

// Bounds of group commit.
const (
	maxShards    = 4               // default limit; more shards do not write faster
	batchDrafts  = 256             // drafts in one transaction
	batchBytes   = 2 << 20         // bytes of bodies in one transaction; a larger body is alone in its transaction
	largeBody    = 64 << 10        // bytes; larger bodies do not share the shards' transactions
	busyLanes    = 8               // busy convos that are written at the same time
	batchTimeout = 8 * time.Second // for one transaction with all its attempts
)

// lanes are the batchers of a log. Messages that arrive during a transaction share the next
// transaction. The first message is written at once, alone; the slower the disk, the larger the
// batches. A convo belongs to one shard, so its messages are written in the order in which they
// arrive, unless the convo is busy.
//
// A shard's transaction skips convos that other transactions have locked. Messages of such a busy
// convo move to the convo's own lane, which waits for the lock. Later messages may overtake them.
//
// Large messages of all convos share one lane, so that small messages do not wait while large
// bodies are written. If a large and a small message are sent to a convo at the same time, either
// can be written first.
//
// Every message first goes through a shard or the large lane, which skip only messages of members.
// So only members wait in a convo's lane, and nobody else learns from a wait that the convo exists.
type lanes struct {
	seed   maphash.Seed
	shards []*batcher
	large  *batcher
	slots  chan struct{} // a busy convo's lane holds one slot while it writes

	mu   sync.Mutex // guards the fields below
	busy map[uuid.UUID]*lane
}

type batcher = batch.Batcher[Draft, Result]

// lane is the batcher of a busy convo. It exists while messages wait in it.
type lane struct {
	*batcher
	users int
}

// defaultShards returns one shard for every two processors, at most maxShards. On two processors a
// second shard halves the size of batches. If the database is on the same machine, each message
// then costs the database 1.5 times as much.
func defaultShards() int { return min(max(runtime.GOMAXPROCS(0)/2, 1), maxShards) }

func (l *Log) newShards(n int) []*batcher {
	shards := make([]*batcher, n)
	for i := range shards {
		shards[i] = l.newBatcher(false)
	}
	return shards
}

// newBatcher returns a batcher. If wait is true, the batcher is for a busy convo and waits for the
// convo's lock. If wait is false, it skips locked convos.
func (l *Log) newBatcher(wait bool) *batcher {
	limits := batch.Limits{Batch: batchDrafts, Cost: batchBytes, Queue: maxSends, Timeout: batchTimeout}
	write := func(ctx context.Context, drafts []Draft) ([]Result, error) {
		if wait {
			l.lanes.slots <- struct{}{}
			defer func() { <-l.lanes.slots }()
		}
		l.onBatch(len(drafts))
		return l.write(ctx, drafts, wait), nil
	}
	return batch.New(limits, write).Weigh(func(d Draft) int { return len(d.Body) })
}

// first returns the first batcher that a message goes through.
func (l *Log) first(d *Draft) *batcher {
	if len(d.Body) > largeBody {
		return l.lanes.large
	}
	return l.shardOf(d.ConvoID)
}

func (l *Log) shardOf(convo uuid.UUID) *batcher {
	return l.lanes.shards[maphash.Bytes(l.lanes.seed, convo[:])%uint64(len(l.lanes.shards))]
}

// sendBusy writes a draft in the lane of its busy convo.
func (l *Log) sendBusy(ctx context.Context, d Draft) (Result, error) {
	all := &l.lanes
	all.mu.Lock()
	ln := all.busy[d.ConvoID]
	if ln == nil {
		ln = &lane{batcher: l.newBatcher(true)}
		all.busy[d.ConvoID] = ln
	}
	ln.users++
	all.mu.Unlock()
	defer func() {
		all.mu.Lock()
		defer all.mu.Unlock()
		if ln.users--; ln.users == 0 {
			delete(all.busy, d.ConvoID)
		}
	}()
	return ln.Do(ctx, d)
}
