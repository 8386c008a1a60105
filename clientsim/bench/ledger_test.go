package bench

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"mlsd/clientsim/xrpc"
)

// A correct log passes. Each kind of fault is reported.
func TestAuditNoticesALyingLog(t *testing.T) {
	t.Parallel()
	const first, honest = 3, 10 // two commits before the load
	c := &convo{id: "c", base: first - 1}
	by := func(i int) *sender {
		return &sender{Account: &xrpc.Account{DID: syntax.DID("did:plc:" + strconv.Itoa(i))}}
	}
	for i := range 3 {
		c.drafts = append(c.drafts, &draft{convo: c, sender: by(i), sum: sha256.Sum256([]byte{byte(i)})})
	}
	drafts := c.drafts
	foreign := &draft{sender: by(7), sum: sha256.Sum256([]byte("foreign"))}
	entryOf := func(seq int64, id uuid.UUID, d *draft) entry {
		return entry{id: id.String(), seq: seq, sum: d.sum, sender: d.sender.DID.String()}
	}
	// testLog makes a log and its acknowledgements, and changes both.
	type testLog struct {
		log      []entry
		receipts []receipt
		unknown  map[*draft]int
	}
	for _, tc := range []struct {
		name   string
		change func(*testLog)
		want   Verdict
	}{
		{"honest", func(*testLog) {}, Verdict{Sent: honest, Stored: honest}},
		{"lost at the end", func(s *testLog) { s.log = s.log[:len(s.log)-1] },
			Verdict{Sent: honest, Stored: honest - 1, Lost: 1}},
		{"lost in the middle", func(s *testLog) { s.log = slices.Delete(s.log, 5, 7) },
			Verdict{Sent: honest, Stored: honest - 2, Lost: 2, Gaps: 2}},
		{"all lost", func(s *testLog) { s.log = nil }, Verdict{Sent: honest, Lost: honest, Gaps: first - 1}},
		{"a gap", func(s *testLog) { s.log[len(s.log)-1].seq++; s.receipts[len(s.receipts)-1].seq++ },
			Verdict{Sent: honest, Stored: honest, Gaps: 1}},
		{"doubled", func(s *testLog) { s.log = append(s.log, entryOf(first+honest, uuid.New(), drafts[0])) },
			Verdict{Sent: honest, Stored: honest + 1, Doubled: 1}},
		{"shown twice", func(s *testLog) { s.log = append(s.log, s.log[len(s.log)-1]) },
			Verdict{Sent: honest, Stored: honest, Doubled: 1}},
		{"foreign", func(s *testLog) { s.log = append(s.log, entryOf(first+honest, uuid.New(), foreign)) },
			Verdict{Sent: honest, Stored: honest + 1}},
		{"another's name", func(s *testLog) { s.log[4].sender = by(9).DID.String() },
			Verdict{Sent: honest, Stored: honest, Lost: 1}},
		{"other bytes", func(s *testLog) { s.log[4].sum = foreign.sum },
			Verdict{Sent: honest, Stored: honest, Lost: 1}},
		{"another id", func(s *testLog) { s.log[4].id = uuid.NewString() },
			Verdict{Sent: honest, Stored: honest, Lost: 1}},
		{"two in the place of one", func(s *testLog) {
			s.receipts = append(s.receipts, receipt{id: uuid.New(), seq: first, draft: drafts[1]})
		}, Verdict{Sent: honest + 1, Stored: honest, Lost: 1}},
		{"an unknown outcome", func(s *testLog) {
			s.log = append(s.log, entryOf(first+honest, uuid.New(), drafts[2]))
			s.unknown[drafts[2]] = 1
		}, Verdict{Sent: honest, Stored: honest + 1, Unknown: 1}},
		{"an unknown outcome, stored twice", func(s *testLog) {
			s.log = append(s.log, entryOf(first+honest, uuid.New(), drafts[2]), entryOf(first+honest+1, uuid.New(), drafts[2]))
			s.unknown[drafts[2]] = 1
		}, Verdict{Sent: honest, Stored: honest + 2, Unknown: 1, Doubled: 1}},
		{"an unknown outcome of something else", func(s *testLog) {
			s.log = append(s.log, entryOf(first+honest, uuid.New(), drafts[2]))
			s.unknown[drafts[1]] = 1
		}, Verdict{Sent: honest, Stored: honest + 1, Doubled: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := testLog{unknown: map[*draft]int{}}
			for seq := int64(1); seq < first; seq++ {
				s.log = append(s.log, entry{id: uuid.NewString(), seq: seq, commit: true})
			}
			for i := range int64(honest) {
				r := receipt{id: uuid.New(), seq: first + i, draft: drafts[i%3]}
				s.log = append(s.log, entryOf(r.seq, r.id, r.draft))
				s.receipts = append(s.receipts, r)
			}
			tc.change(&s)
			slices.Reverse(s.receipts) // receipts come in no order
			got := Verdict{}
			a := newAudit(c, &got, s.receipts, s.unknown)
			for _, e := range s.log {
				a.see(e)
			}
			a.end()
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreFields(Verdict{}, "Violated")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if honest := tc.name == "honest" || tc.name == "an unknown outcome"; got.Kept() != honest {
				t.Errorf("kept: %t; it says %q", got.Kept(), got.Violated)
			}
		})
	}
}
