package messages_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/messages"
	"mlsd/mls"
)

// BenchmarkAppend sends 1 KiB messages one by one, 16 at a time, to one convo and to a hundred. The
// test database does not flush, so this is the cost of the statements only.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("convos=%d", n), func(b *testing.B) {
			f := newFixture(b, 0)
			ids := make([]uuid.UUID, n)
			for i := range ids {
				ids[i] = uuid.Must(uuid.NewV7())
				f.addConvo(b, ids[i])
			}
			body := string(make([]byte, 1024))
			var sent atomic.Int64
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					i := sent.Add(1)
					convo := ids[int(i)%n]
					results, err := f.Append(b.Context(), []messages.Draft{{
						ConvoID: convo, GroupID: convo[:], Sender: alice, Key: fmt.Sprint(i), Kind: mls.ContentTypeApplication,
						Epoch: f.epoch, Body: mlstest.Message(convo[:], f.epoch, body),
						Hash: idem.Content{{Name: "ciphertext", JSON: fmt.Appendf(nil, "%d", i)}}.Hash(),
					}})
					if err != nil || results[0].Err != nil {
						b.Errorf("%v, %v", err, results)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
