package messages

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
	"mlsd/mls"
	"mlsd/outbox"
)

// transaction is what one transaction reads, decides and writes.
type transaction struct {
	drafts   []Draft
	window   int64
	entitled bool       // the caller has decided that senders need not be members
	also     *pgx.Batch // statements queued by the drafts' Also

	convoIDs      pgpool.Array[pgpool.UUID] // this field and the next three have one element for each draft
	senders, keys pgpool.Array[pgpool.Text]
	hashes        pgpool.Array[pgpool.Bytes]

	convos     map[uuid.UUID]*convo // the convos that are locked
	states     []state
	used       map[serviceauth.TokenID]bool
	now        time.Time // the database's time, after the locks were taken; whole milliseconds
	hasTargets bool      // there is a push target

	judgment
}

func newTransaction(drafts []Draft, window int64) *transaction {
	n := len(drafts)
	t := &transaction{
		drafts: drafts, window: window, also: &pgx.Batch{},
		convoIDs: make(pgpool.Array[pgpool.UUID], n), senders: make(pgpool.Array[pgpool.Text], n),
		keys: make(pgpool.Array[pgpool.Text], n), hashes: make(pgpool.Array[pgpool.Bytes], n),
		convos: map[uuid.UUID]*convo{}, states: make([]state, n),
	}
	for i := range drafts {
		d := &drafts[i]
		t.convoIDs[i], t.senders[i] = pgpool.UUID(d.ConvoID), pgpool.Text(d.Sender)
		t.keys[i], t.hashes[i] = pgpool.Text(d.Key), d.Hash[:]
		if d.Also != nil {
			d.Also(t.also)
		}
	}
	return t
}

// queueReads queues the first round trip. lock is one of the statements that lock convos.
func (t *transaction) queueReads(batch *pgx.Batch, lock string, args ...any) {
	batch.Queue(lock, args...).Query(t.readConvos)
	batch.Queue(readStates, t.convoIDs, t.senders, t.keys, t.hashes).Query(t.readStates)
	var tokens pgpool.Array[pgpool.UUID]
	for i := range t.drafts {
		if token := t.drafts[i].Token; token != nil {
			tokens = append(tokens, pgpool.UUID(token.ID()))
		}
	}
	if len(tokens) > 0 {
		t.used = map[serviceauth.TokenID]bool{}
		batch.Queue(readUsedTokens, tokens).Query(t.readUsedTokens)
	}
}

func (t *transaction) readConvos(rows pgx.Rows) error {
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		t.convos[uuid.UUID(raw[0])] = &convo{
			groupID: bytes.Clone(raw[1]), epoch: bigint(raw[2]), lastSeq: bigint(raw[3]), isClosed: boolean(raw[4]),
			successor: orNil(raw[5]),
		}
	}
	return rows.Err()
}

// readStates reads the rows of the statement readStates, which come in any order. It decodes rows
// from the connection's buffer, without Scan. Most rows have no recorded message.
func (t *transaction) readStates(rows pgx.Rows) error {
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		raw := rows.RawValues()
		s := &t.states[bigint(raw[0])-1]
		s.isMember, s.hasLeft, s.isRequest = boolean(raw[1]), boolean(raw[2]), boolean(raw[3])
		t.now, t.hasTargets = timestamp(raw[4]).Truncate(time.Millisecond), boolean(raw[5])
		if raw[6] == nil {
			continue
		}
		s.recorded = &recorded{
			seq: bigint(raw[6]), at: timestamp(raw[7]), hash: bytes.Clone(raw[8]), epoch: bigint(raw[9]),
			embedType: optionalText(raw[10]), embedURI: optionalText(raw[11]), bodyHash: bytes.Clone(raw[12]),
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if n != len(t.drafts) {
		return fmt.Errorf("%d rows for %d drafts", n, len(t.drafts))
	}
	return nil
}

func (t *transaction) readUsedTokens(rows pgx.Rows) error {
	defer rows.Close()
	for rows.Next() {
		t.used[serviceauth.TokenID(rows.RawValues()[0])] = true
	}
	return rows.Err()
}

// writeStatements returns all statements that queueWrites can queue.
func (t *transaction) writeStatements() []string {
	all := []string{insertMessages, advanceConvos, acceptConvos, outbox.MessagesTogether, outbox.MessagesEach, queuePushes}
	if t.used != nil {
		all = append(all, useTokens)
	}
	for _, q := range t.also.QueuedQueries {
		all = append(all, q.SQL)
	}
	return all
}

// queueWrites judges the drafts, and queues the second round trip.
func (t *transaction) queueWrites(batch *pgx.Batch) {
	for i := range t.states {
		d, s := &t.drafts[i], &t.states[i]
		s.convo, s.now = t.convos[d.ConvoID], t.now
		if t.entitled {
			s.isMember, s.hasLeft = s.convo != nil, false
		}
		if d.Token != nil {
			s.isUsed = t.used[d.Token.ID()]
		}
	}
	t.judgment = judgeAll(t.drafts, t.states, t.window)
	t.queueTokens(batch)
	if len(t.appended) > 0 {
		t.queueMessages(batch)
		t.queueConvos(batch)
		t.queueEvents(batch)
		t.queuePushes(batch)
	}
	batch.QueuedQueries = append(batch.QueuedQueries, t.also.QueuedQueries...)
}

func (t *transaction) queueTokens(batch *pgx.Batch) {
	n := len(t.tokens)
	if n == 0 {
		return
	}
	ids, ends := make(pgpool.Array[pgpool.UUID], n), make(pgpool.Array[pgpool.Time], n)
	for i, token := range t.tokens {
		ids[i], ends[i] = pgpool.UUID(token.id), pgpool.Time(token.expires)
	}
	batch.Queue(useTokens, ids, ends)
}

func (t *transaction) queueMessages(batch *pgx.Batch) {
	n := len(t.appended)
	var (
		convos              = make(pgpool.Array[pgpool.UUID], n)
		seqs, kinds, epochs = make(pgpool.Array[pgpool.Int], n), make(pgpool.Array[pgpool.Int], n),
			make(pgpool.Array[pgpool.Int], n)
		senders, keys         = make(pgpool.Array[pgpool.Text], n), make(pgpool.Array[pgpool.Text], n)
		bodies, hashes        = make(pgpool.Array[pgpool.Bytes], n), make(pgpool.Array[pgpool.Bytes], n)
		embedTypes, embedURIs = make(pgpool.Array[pgpool.OptionalText], n), make(pgpool.Array[pgpool.OptionalText], n)
	)
	for at, i := range t.appended {
		d := &t.drafts[i]
		convos[at], seqs[at], kinds[at] = t.convoIDs[i], pgpool.Int(t.results[i].Seq), pgpool.Int(d.Kind)
		senders[at], epochs[at], bodies[at], keys[at], hashes[at] = t.senders[i], pgpool.Int(d.Epoch), d.Body, t.keys[i],
			t.hashes[i]
		embedTypes[at], embedURIs[at] = pgpool.Optional(d.EmbedType), pgpool.Optional(d.EmbedURI)
	}
	batch.Queue(insertMessages, convos, seqs, kinds, senders, epochs, bodies, keys, hashes, embedTypes, embedURIs, t.now)
}

// queueConvos advances the convos, and accepts convos that were requests.
func (t *transaction) queueConvos(batch *pgx.Batch) {
	last := map[uuid.UUID]int64{}
	var requested []int
	for _, i := range t.appended {
		last[t.drafts[i].ConvoID] = t.results[i].Seq
		if t.states[i].isRequest {
			requested = append(requested, i)
		}
	}
	convos, seqs := make(pgpool.Array[pgpool.UUID], 0, len(last)), make(pgpool.Array[pgpool.Int], 0, len(last))
	for convo, seq := range last {
		convos, seqs = append(convos, pgpool.UUID(convo)), append(seqs, pgpool.Int(seq))
	}
	batch.Queue(advanceConvos, convos, seqs, t.now)
	if len(requested) > 0 {
		convos, senders := t.sendersOf(requested)
		batch.Queue(acceptConvos, convos, senders)
	}
}

func (t *transaction) sendersOf(drafts []int) (convos pgpool.Array[pgpool.UUID], senders pgpool.Array[pgpool.Text]) {
	for _, i := range drafts {
		convos, senders = append(convos, t.convoIDs[i]), append(senders, t.senders[i])
	}
	return convos, senders
}

func (t *transaction) queueEvents(batch *pgx.Batch) {
	n := len(t.appended)
	kinds, seqs, sizes := make(pgpool.Array[pgpool.Int], n), make(pgpool.Array[pgpool.Int], n),
		make(pgpool.Array[pgpool.Int], n)
	convos := make(pgpool.Array[pgpool.UUID], n)
	for at, i := range t.appended {
		d := &t.drafts[i]
		kinds[at], convos[at], seqs[at], sizes[at] = pgpool.Int(d.Kind), t.convoIDs[i], pgpool.Int(t.results[i].Seq),
			pgpool.Int(len(d.Body))
	}
	outbox.QueueMessages(batch, kinds, convos, seqs, sizes, t.now)
}

func (t *transaction) queuePushes(batch *pgx.Batch) {
	if !t.hasTargets {
		return
	}
	type sent struct {
		convo  uuid.UUID
		sender syntax.DID
	}
	all := map[sent]bool{}
	for _, i := range t.appended {
		if d := &t.drafts[i]; d.Kind == mls.ContentTypeApplication {
			all[sent{d.ConvoID, d.Sender}] = true
		}
	}
	sorted := slices.SortedFunc(maps.Keys(all), func(a, b sent) int {
		return cmp.Or(bytes.Compare(a.convo[:], b.convo[:]), cmp.Compare(a.sender, b.sender))
	})
	convos, senders := make(pgpool.Array[pgpool.UUID], len(sorted)), make(pgpool.Array[pgpool.Text], len(sorted))
	for i, s := range sorted {
		convos[i], senders[i] = pgpool.UUID(s.convo), pgpool.Text(s.sender)
	}
	if len(sorted) > 0 {
		batch.Queue(queuePushes, convos, senders)
	}
}

// bigint decodes a bigint in the binary format, which the driver uses for results. NULL is 0.
func bigint(raw []byte) int64 {
	if len(raw) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(raw))
}

// boolean decodes a boolean. NULL is false.
func boolean(raw []byte) bool { return len(raw) == 1 && raw[0] == 1 }

// orNil decodes a uuid in the binary format. NULL is uuid.Nil.
func orNil(raw []byte) (id uuid.UUID) {
	copy(id[:], raw)
	return id
}

// timestamp decodes a timestamptz in the binary format: microseconds since the year 2000.
func timestamp(raw []byte) time.Time {
	const year2000 = 946684800
	return time.Unix(year2000, 0).Add(time.Duration(bigint(raw)) * time.Microsecond)
}

// optionalText decodes a text. NULL is nil.
func optionalText(raw []byte) *string {
	if raw == nil {
		return nil
	}
	text := string(raw)
	return &text
}
