package bench

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"sync"
	"time"

	"mlsd/api/mlsapi"
	. "mlsd/clientsim/steps"
	"mlsd/clientsim/xrpc"
)

// verifyLanes is how many convos are read at once.
const verifyLanes = 8

// pageSize is how many entries one request reads.
const pageSize = 100

// verify reads every convo, compares it with the acknowledged messages, and asks the server's own
// checker.
func (b *bench) verify(ctx context.Context) {
	total := &Verdict{Kills: b.kills}
	b.report.Verdict = total
	receipts, unknown := map[*convo][]receipt{}, map[*convo]map[*draft]int{}
	for _, w := range b.workers {
		t := &w.outcome
		for _, r := range t.receipts {
			receipts[r.draft.convo] = append(receipts[r.draft.convo], r)
		}
		for _, d := range t.unknown {
			if unknown[d.convo] == nil {
				unknown[d.convo] = map[*draft]int{}
			}
			unknown[d.convo][d]++
		}
		total.Retried, total.Dropped, total.Duplicate = total.Retried+t.retried, total.Dropped+t.dropped,
			total.Duplicate+t.twice
		total.Violated = append(total.Violated,
			t.violated[:min(len(t.violated), maxViolations-min(len(total.Violated), maxViolations))]...)
		t.receipts = nil
	}
	b.say("reading %d convos", len(b.convos))
	began := time.Now()
	var mu sync.Mutex // guards total
	wires := make(chan *wire, verifyLanes)
	for i := range verifyLanes {
		w := newWire(b.env.addr(i))
		defer w.close()
		wires <- w
	}
	Each(verifyLanes, len(b.convos), func(i int) {
		c := b.convos[i]
		w := <-wires
		defer func() { wires <- w }()
		var found Verdict
		b.read(ctx, w, newAudit(c, &found, receipts[c], unknown[c]))
		mu.Lock()
		defer mu.Unlock()
		total.Sent, total.Stored, total.Unknown = total.Sent+found.Sent, total.Stored+found.Stored,
			total.Unknown+found.Unknown
		total.Lost, total.Doubled, total.Gaps = total.Lost+found.Lost, total.Doubled+found.Doubled, total.Gaps+found.Gaps
		total.Violated = append(total.Violated, found.Violated...)
	})
	b.say("read %d messages in %s; asking the server's own checker", total.Stored,
		time.Since(began).Round(time.Millisecond))
	for _, text := range Must(b.env.Nodes[0].CheckDatabase(ctx)) {
		total.Violated = append(total.Violated, "in the database: "+text)
	}
}

// read reads a convo's whole log.
func (b *bench) read(ctx context.Context, w *wire, a *audit) {
	token := Must(tokenOf(a.convo.reader, mlsapi.NSIDGetMessages))
	for {
		Check(context.Cause(ctx))
		query := fmt.Sprintf("messageType=all&limit=%d&convoId=%s&sinceSeq=%d", pageSize, a.convo.id, a.last)
		page := Must(w.do(ctx, get(w.addr, mlsapi.NSIDGetMessages, query, token)))
		if page.status != http.StatusOK {
			Fail("getMessages of convo %s: %d %.200s", a.convo.id, page.status, page.body)
		}
		out := Must(xrpc.Decode[mlsapi.GetMessagesOutput](page.body))
		before := a.last
		for i := range out.Messages {
			m := &out.Messages[i]
			a.see(entry{
				id: m.ID, seq: m.Seq, sum: sha256.Sum256(m.Ciphertext), sender: m.Sender.String(), commit: m.MessageType != nil &&
					*m.MessageType == "commit",
			})
		}
		if out.Cursor == nil {
			a.end()
			return
		}
		if a.last == before {
			Fail("getMessages of convo %s: a cursor, and nothing new", a.convo.id)
		}
	}
}
