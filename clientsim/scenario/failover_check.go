package scenario

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"

	"mlsd/api/mlsapi"
	"mlsd/clientsim/history"
	"mlsd/clientsim/testbed"
	"mlsd/clientsim/xrpc"
)

// checkLogs reads the logs of all convos, and compares them with what was acknowledged.
func (b *liveRun) checkLogs(ctx context.Context) {
	check(b.inLanes(len(b.convos), func(rng *rand.Rand, i int) error {
		r := b.convos[i]
		got, err := b.readLog(ctx, rng, r)
		if err != nil {
			return err
		}
		want := b.history.Log(r.id)
		if len(got) != len(want) {
			b.w.Broken("the log of convo %s has %d entries, and %d were acknowledged", r.id, len(got), len(want))
		}
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				b.w.Broken("convo %s: seq %d is not what was acknowledged there", r.id, i+1)
			}
		}
		return nil
	}))
}

const logPage = 100

// readLog reads a convo's log, whose seqs have no gap, as its creator.
func (b *liveRun) readLog(ctx context.Context, rng *rand.Rand, r *liveConvo) (log []history.EntryDigest, err error) {
	for {
		answer, err := b.cluster.Do(ctx, rng, r.writers[0], xrpc.MessagesCall(r.id, "all", int64(len(log)), logPage))
		if err != nil {
			return nil, fmt.Errorf("read the log of convo %s: %w", r.id, err)
		}
		page, err := xrpc.Decode[mlsapi.GetMessagesOutput](answer.Body)
		if err != nil {
			return nil, err
		}
		for i := range page.Messages {
			m := &page.Messages[i]
			if m.Seq != int64(len(log))+1 {
				return nil, fmt.Errorf("convo %s: seq %d follows %d", r.id, m.Seq, len(log))
			}
			log = append(log, digestOf(m))
		}
		if len(page.Messages) == 0 {
			return log, nil
		}
	}
}

// digestOf is the digest of an entry of a log. A commit is recorded with the epoch that it begins.
func digestOf(m *mlsapi.MessageView) history.EntryDigest {
	epoch, commit := m.Epoch, xrpc.IsCommit(m)
	if commit {
		epoch++
	}
	return history.DigestEntry(commit, m.ID, m.Sender.String(), epoch, sha256.Sum256(m.Ciphertext))
}

// checkNodes asks each node to check the database.
func checkNodes(ctx context.Context, w *testbed.World, f *testbed.Cluster) {
	for i, node := range f.Nodes {
		broken := must(node.CheckDatabase(ctx))
		for _, text := range broken {
			w.Broken("node %d finds in the database: %s", i+1, text)
		}
	}
}
