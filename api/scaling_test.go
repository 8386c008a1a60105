package api_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"mlsd/api/mlsapi"
	"mlsd/idem"
	"mlsd/internal/mlstest"
	"mlsd/messages"
	"mlsd/mls"
)

// The formula of docs/SCALING.md is true. 200 people found convos, join, commit and send, with real
// MLS, and the tables grow by what the page says of each thing.
//
// The sums agree to within a tenth, because a B-tree is full to between two thirds and nine tenths,
// depending on the order of its keys. Many messages agree to within 3 %. A row of the page may also
// differ by a page of its table and of each index, because PostgreSQL gives out pages. The first
// convos are not measured, because tables and indexes begin with empty pages.
func TestScaling(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("writes 25 MB")
	}
	page := readScalingPage(t)
	g := &growth{world: newWorld(t, func(w *world) { w.live = true }), page: page, measured: map[string]bool{}}
	for range 200 {
		g.people = append(g.people, g.phone())
	}
	g.found(8)
	g.measure(0.1, func() { g.found(64) }, "a used KeyPackage", "a write with a record", "a change of a state",
		"a commit", "a device that joins", "a member", "a convo", "the tombstone of a KeyPackage")
	before := g.count(`SELECT pg_relation_size('messages')`)
	const perConvo = 512 // two full tiles of the log's tree
	g.measure(0.03, func() { g.sendTogether(16, perConvo) }, "a message of 1 KiB", "the hash of a log entry")
	heap := float64(g.count(`SELECT pg_relation_size('messages')`)-before) / (16 * perConvo)
	page.expect(t, "a message in the table itself", page.heapBytes, heap, 0.02*heap)
	g.measure(0.1, func() { g.sendAlone(2000) }, "the event of a message")
	for name := range page.rows {
		if !g.measured[name] {
			t.Errorf("nothing measures %q of docs/SCALING.md", name)
		}
	}
}

// growth compares how the tables of a world grow with docs/SCALING.md.
type growth struct {
	*world
	page     scalingPage
	measured map[string]bool // rows of the page
	people   []*phone
	founders []*phone
	convos   []*convo
}

// measure checks the rows of the page with these names against what do adds to their tables.
func (g *growth) measure(tolerance float64, do func(), names ...string) {
	g.t.Helper()
	before := map[string]size{}
	g.exec(`VACUUM`)
	for _, name := range names {
		before[name] = g.size(g.page.rows[name])
	}
	do()
	g.exec(`VACUUM`)
	var said, is float64
	for _, name := range names {
		r, from, to := g.page.rows[name], before[name], g.size(g.page.rows[name])
		things, bytes := float64(to.things-from.things), float64(to.bytes-from.bytes)
		g.t.Logf("%s: %.0f bytes, of %.0f", name, bytes/things, things)
		g.page.expect(g.t, name, r.bytes, bytes/things, tolerance*bytes/things+float64(to.files*pageBytes)/things)
		said, is = said+r.bytes*things, is+bytes
		g.measured[name] = true
	}
	g.page.expect(g.t, fmt.Sprintf("all of %q", names), said, is, tolerance*is)
}

// size is what the tables of a row of the page take.
type size struct {
	things, bytes int
	files         int // tables and indexes
}

func (g *growth) size(r storedThing) (s size) {
	g.t.Helper()
	err := g.db.QueryRow(g.t.Context(), `
		SELECT sum(pg_total_relation_size(c.oid)), count(*) + sum((SELECT count(*) FROM pg_index WHERE indrelid = c.oid))
		FROM unnest($1::text[]) AS name
		JOIN pg_class c
			ON c.oid = name::regclass OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = name::regclass)`,
		r.tables).Scan(&s.bytes, &s.files)
	if err != nil {
		g.t.Fatal(err)
	}
	s.things = g.count(`SELECT count(*) FROM ` + r.tables[0])
	if r.tables[0] == "log_tiles" {
		s.things = g.count(`SELECT coalesce(sum(octet_length(hashes)), 0) / 32 FROM log_tiles WHERE level = 0`)
	}
	return s
}

// found makes n convos of five people. All of them join, and the founder commits twice.
func (g *growth) found(n int) {
	g.t.Helper()
	for range n {
		at := 4 * len(g.convos)
		var others []*phone
		for i := range 4 {
			others = append(others, g.people[(at+1+i)%len(g.people)])
		}
		founder := g.people[at%len(g.people)]
		c := founder.found(others...)
		for range 2 {
			staged := must(founder.group.StageUpdate())(g.world)
			out := read[mlsapi.SubmitCommitOutput](g.t, founder.post(mlsapi.NSIDSubmitCommit, submit(c, staged)).ok())
			if err := founder.group.Confirm(); err != nil {
				g.t.Fatal(err)
			}
			c.epoch = out.NewEpoch
		}
		g.convos, g.founders = append(g.convos, c), append(g.founders, founder)
		if len(g.convos)%8 == 0 { // as autovacuum does when a fifth of the rows are dead
			g.exec(`VACUUM`)
		}
	}
}

// sendTogether sends perConvo messages into each of the first convos at the same time, and asks for
// the heads of their logs.
func (g *growth) sendTogether(convos, perConvo int) {
	g.t.Helper()
	var sending sync.WaitGroup
	for i := range convos {
		sending.Go(func() {
			for range perConvo {
				g.sendTo(i)
			}
		})
	}
	sending.Wait()
	for i := range convos {
		g.founders[i].get(mlsapi.NSIDGetLogHead, "convoId", g.convos[i].id).ok()
	}
	g.sequenced()
}

// sendAlone sends messages one after the other.
func (g *growth) sendAlone(n int) {
	g.t.Helper()
	for i := range n {
		g.sendTo(i % len(g.convos))
	}
	g.sequenced()
}

// sendTo sends a message of 1 KiB into a convo.
func (g *growth) sendTo(i int) {
	c, key := g.convos[i], *newKey()
	_, err := g.messages.Send(g.t.Context(), messages.Draft{
		ConvoID: uuid.MustParse(c.id), GroupID: c.group, Sender: g.founders[i].did(), Key: key,
		Kind: mls.ContentTypeApplication, Epoch: c.epoch,
		Body: mlstest.Message(c.group, c.epoch, string(make([]byte, 1024))),
		Hash: idem.Content{{Name: "ciphertext", JSON: fmt.Appendf(nil, "%q", key)}}.Hash(),
	})
	if err != nil {
		g.t.Error(err)
	}
}

// sequenced waits until all events are in the stream.
func (g *growth) sequenced() {
	g.t.Helper()
	for deadline := time.Now().Add(time.Minute); g.count(`SELECT count(*) FROM outbox`) > 0; {
		if time.Now().After(deadline) {
			g.t.Fatal("the outbox is not empty")
		}
	}
}
