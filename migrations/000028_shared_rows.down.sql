DELETE FROM schema_support WHERE version = 28;

-- Every message gets a row of its own again.
INSERT INTO events (stream_seq, day, kind, convo_id, seq, size, created_at)
    SELECT e.stream_seq - cardinality(e.seqs) + m.ord, e.day, e.kind, m.convo_id, m.seq, m.size, e.created_at
    FROM events e CROSS JOIN LATERAL unnest(e.convo_ids, e.seqs, e.sizes) WITH ORDINALITY AS m (convo_id, seq, size, ord)
    WHERE m.ord < cardinality(e.seqs);
UPDATE events SET convo_id = convo_ids[cardinality(seqs)], seq = seqs[cardinality(seqs)], size = sizes[cardinality(seqs)] WHERE seqs IS NOT NULL;
WITH waited AS (
    DELETE FROM outbox RETURNING id
)
INSERT INTO outbox (kind, convo_id, seq, did, size, detail, created_at)
    SELECT kind, convo_id, seq, did, size, detail, created_at FROM single_outbox ORDER BY id, ord;

DROP TABLE convo_events_end;
DROP TABLE convo_events;
DROP VIEW single_outbox;
DROP VIEW single_events;
ALTER TABLE events DROP COLUMN sizes, DROP COLUMN seqs, DROP COLUMN convo_ids;
ALTER TABLE outbox RESET (toast_tuple_target);
ALTER TABLE outbox DROP COLUMN sizes, DROP COLUMN seqs, DROP COLUMN convo_ids;
