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
	maxShards    = 4               // by default; more shards do not write faster
	batchDrafts  = 256             // of one transaction
	batchBytes   = 2 << 20         // of their bodies; a larger body is alone in its transaction
	largeBody    = 64 << 10        // bytes; larger ones do not share the shards' transactions
	busyLanes    = 8               // busy convos that are written at one time
	batchTimeout = 8 * time.Second // of one transaction with all its attempts
)

// lanes are the batchers of a log: messages that arrive during a transaction share the next one.
// The first message is written at once, alone; the slower the disk, the larger the batches. A convo
// belongs to one shard, so its messages are written in the order in which they arrive, unless it is
// busy.
//
// A shard's transaction skips convos that others have locked. The messages of such a busy convo go
// on to its own lane, which waits for the lock; later messages may overtake them.
//
// Large messages of all convos have one lane instead of the shards, so that small ones do not wait
// for their bytes. A large and a small message sent at once to a convo can be written in either
// order.
//
// Every message first goes through a shard or the large lane, where only members' messages are
// skipped. So nobody else waits in a convo's lane, or learns from a wait that the convo exists.
type lanes struct {
	seed   maphash.Seed
	shards []*batcher
	large  *batcher
	slots  chan struct{} // a busy convo's lane holds one while it writes

	mu   sync.Mutex // guards what follows
	busy map[uuid.UUID]*lane
}

type batcher = batch.Batcher[Draft, Result]

// lane is the batcher of a busy convo. It exists while messages wait in it.
type lane struct {
	*batcher
	users int
}

// defaultShards is one for every two processors. On two processors a second shard halves the size
// of batches. If the database is on the same machine, a message then costs it 1.5 times as much.
func defaultShards() int { return min(max(runtime.GOMAXPROCS(0)/2, 1), maxShards) }

func (l *Log) newShards(n int) []*batcher {
	shards := make([]*batcher, n)
	for i := range shards {
		shards[i] = l.newBatcher(false)
	}
	return shards
}

// newBatcher returns a batcher. With wait it is for a busy convo, and waits for its lock. Without,
// it skips locked convos.
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

// first returns the batcher that a message goes through first.
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
