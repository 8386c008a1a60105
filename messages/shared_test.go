package messages_test

import (
	"slices"
	"testing"

	"mlsd/internal/mlstest"
	"mlsd/messages"
	"mlsd/mls"
)

// outboxRows are the rows of the outbox: the seqs of the messages that each stands for.
func (f *fixture) outboxRows(t *testing.T) (rows [][]int64) {
	t.Helper()
	found, err := f.db.Query(t.Context(), `SELECT array_agg(seq ORDER BY ord) FROM single_outbox GROUP BY id ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		var seqs []int64
		if err := found.Scan(&seqs); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, seqs)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return rows
}

// The messages of a transaction share a row of the outbox, in the order of their convos. One that is
// alone has a row of its own. If a proposal is among them, all have: it must keep its place.
func TestSharedRows(t *testing.T) {
	t.Parallel()
	same := func(a, b [][]int64) bool { return slices.EqualFunc(a, b, slices.Equal[[]int64]) }
	drafts := func(f *fixture) []messages.Draft {
		return []messages.Draft{
			f.draft(f.convos[0], alice, "1", "a"), f.draft(f.convos[1], bob, "2", "b"), f.draft(f.convos[0], bob, "3", "c"),
			f.draft(f.convos[1], alice, "4", "d"),
		}
	}
	t.Run("together", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, 0)
		f.append(t, drafts(f)...)
		f.append(t, f.draft(f.convos[0], alice, "5", "e"))
		if got := f.outboxRows(t); !same(got, [][]int64{{1, 1, 2, 2}, {3}}) {
			t.Errorf("the rows have the seqs %v", got)
		}
		if n := f.count(t, `SELECT count(*) FROM outbox WHERE seqs IS NULL AND convo_id IS NOT NULL AND size > 0`); n != 1 {
			t.Errorf("%d rows of a message that is alone", n)
		}
	})
	t.Run("with a proposal", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, 0)
		mixed := drafts(f)
		mixed[2].Kind, mixed[2].Body = mls.ContentTypeProposal, mlstest.Proposal(f.convos[0][:], f.epoch, "c")
		mixed = append(mixed, f.draft(f.convos[0], alice, "5", "e"))
		f.append(t, mixed...)
		if got := f.outboxRows(t); !same(got, [][]int64{{1}, {1}, {2}, {2}, {3}}) {
			t.Errorf("the rows have the seqs %v", got)
		}
	})
}
