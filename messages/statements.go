package messages

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"mlsd/internal/pgpool"
	"mlsd/internal/serviceauth"
)

// waitLonger lets the transaction of a busy convo wait for locks longer than a batch that convos
// share does (pgpool.OpenReserved).
const waitLonger = `SELECT set_config('lock_timeout', $1, true)`

// waitForConvos locks the convos whose members the senders are. It waits for transactions that have
// locked them. It is a statement of its own, because a statement keeps the snapshot that it began
// with: the next statement sees what the other transactions committed.
const waitForConvos = `
	SELECT FROM convos
	WHERE id = ANY (ARRAY(
		SELECT m.convo_id
		FROM unnest($1::uuid[], $2::text[]) AS d (convo_id, sender_did)
		CROSS JOIN LATERAL (
			SELECT convo_id FROM members WHERE convo_id = d.convo_id AND did = d.sender_did AND left_at IS NULL LIMIT 1
		) m))
	ORDER BY id FOR NO KEY UPDATE`

// appendDrafts judges drafts and appends them. It is the only statement that appends messages.
//
//go:embed append.sql
var appendDrafts string

// queueAppend queues appendDrafts, which returns a result for each draft to read, and what the drafts
// want besides. window is how many
// epochs behind the convo's a message may be. entitled says that the caller has decided that the
// senders may send without being members.
func queueAppend(batch *pgx.Batch, drafts []Draft, window int64, entitled bool, read func([]Result)) {
	batch.Queue(appendDrafts, append(appendParams(drafts), serviceauth.LateUse, window, entitled, overQuota(drafts))...).Query(func(rows pgx.Rows) error {
		results, err := collectResults(rows, drafts)
		if err != nil {
			return fmt.Errorf("append messages: %w", err)
		}
		read(results)
		return nil
	})
	for i := range drafts {
		if also := drafts[i].Also; also != nil {
			also(batch)
		}
	}
}

// appendParams returns the parameters $1 to $14 of appendDrafts.
func appendParams(drafts []Draft) []any {
	n := len(drafts)
	var (
		convos, tokens        = make(pgpool.Array[pgpool.UUID], n), make(pgpool.Array[pgpool.UUID], n)
		senders, keys         = make(pgpool.Array[pgpool.Text], n), make(pgpool.Array[pgpool.Text], n)
		hashes, groups        = make(pgpool.Array[pgpool.Bytes], n), make(pgpool.Array[pgpool.Bytes], n)
		epochs, kinds         = make(pgpool.Array[pgpool.Int], n), make(pgpool.Array[pgpool.Int], n)
		expiration            = make(pgpool.Array[pgpool.Time], n)
		bodies                = make(pgpool.Array[pgpool.Bytes], n)
		embedTypes, embedURIs = make(pgpool.Array[pgpool.OptionalText], n), make(pgpool.Array[pgpool.OptionalText], n)
		tokenFirst, keyFirst  = make(pgpool.Array[pgpool.Int], n), make(pgpool.Array[pgpool.Int], n)
		firstOfToken          = make(map[serviceauth.TokenID]pgpool.Int, n)
		firstOfKey            = make(map[requestKey]pgpool.Int, n)
	)
	for i := range drafts {
		d, place := &drafts[i], pgpool.Int(i+1)
		convos[i], senders[i], keys[i], hashes[i] = pgpool.UUID(d.ConvoID), pgpool.Text(d.Sender), pgpool.Text(d.Key), d.Hash[:]
		groups[i], epochs[i], kinds[i] = d.GroupID, pgpool.Int(d.Epoch), pgpool.Int(d.Kind)
		if d.overQuota == nil { // else it is not appended
			bodies[i] = d.Body
		}
		embedTypes[i], embedURIs[i] = pgpool.Optional(d.EmbedType), pgpool.Optional(d.EmbedURI)
		keyFirst[i] = firstPlace(firstOfKey, d.requestKey(), place)
		if d.Token != nil {
			id := d.Token.ID()
			tokens[i], expiration[i] = pgpool.UUID(id), pgpool.Time(d.Token.Expires())
			tokenFirst[i] = firstPlace(firstOfToken, id, place)
		}
	}
	return []any{convos, senders, keys, hashes, groups, epochs, tokens, expiration, kinds, bodies, embedTypes, embedURIs, tokenFirst, keyFirst}
}

// overQuota is the parameter $18 of appendDrafts.
func overQuota(drafts []Draft) []bool {
	over := make([]bool, len(drafts))
	for i, d := range drafts {
		over[i] = d.overQuota != nil
	}
	return over
}

// firstPlace returns the place that first has for k. If it has none, it is place from now on.
func firstPlace[K comparable](first map[K]pgpool.Int, k K, place pgpool.Int) pgpool.Int {
	if earlier, ok := first[k]; ok {
		return earlier
	}
	first[k] = place
	return place
}

// Columns of appendDrafts that matter for a draft that is appended. They are read from the
// connection's buffer.
const (
	columnPlace = iota
	columnVerdict
	columnSeq
	columnTime
)

// collectResults reads the rows of appendDrafts. They come in any order.
func collectResults(rows pgx.Rows, drafts []Draft) ([]Result, error) {
	defer rows.Close()
	rulings := make([]ruling, len(drafts))
	n := 0
	for ; rows.Next(); n++ {
		raw := rows.RawValues()
		r := &rulings[bigint(raw[columnPlace])-1]
		if string(raw[columnVerdict]) == verdictAppend { // nearly always
			r.verdict, r.seq, r.at = verdictAppend, bigint(raw[columnSeq]), timestamp(raw[columnTime])
		} else if err := r.scan(rows); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if n != len(drafts) {
		return nil, fmt.Errorf("%d rows for %d drafts", n, len(drafts))
	}
	return resultsOf(drafts, rulings)
}

// bigint decodes a bigint in the binary format, which is the driver's for results. NULL is 0.
func bigint(raw []byte) int64 {
	if len(raw) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(raw))
}

// timestamp decodes a timestamptz in the binary format: microseconds since the year 2000.
func timestamp(raw []byte) time.Time {
	const year2000 = 946684800
	return time.Unix(year2000, 0).Add(time.Duration(bigint(raw)) * time.Microsecond)
}
