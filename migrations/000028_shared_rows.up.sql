-- A row of the outbox, and a row of events, can stand for several application messages, which were written in one transaction: then convo_ids, seqs and
-- sizes have an element for each, in their order, and convo_id, seq and size do not count. stream_seq is the place of the last one.
ALTER TABLE outbox
    ADD COLUMN convo_ids uuid[],
    ADD COLUMN seqs bigint[],
    ADD COLUMN sizes integer[],
    ALTER COLUMN convo_ids SET STORAGE EXTERNAL,
    ALTER COLUMN seqs SET STORAGE EXTERNAL,
    ALTER COLUMN sizes SET STORAGE EXTERNAL;
ALTER TABLE outbox SET (toast_tuple_target = 8160);          -- 256 messages stay in the row
ALTER TABLE events
    ADD COLUMN convo_ids uuid[],
    ADD COLUMN seqs bigint[],
    ADD COLUMN sizes integer[],
    ALTER COLUMN convo_ids SET STORAGE EXTERNAL,
    ALTER COLUMN seqs SET STORAGE EXTERNAL,
    ALTER COLUMN sizes SET STORAGE EXTERNAL;

-- The events one by one, and those that wait. row_seq is the stream_seq of the row: a condition on it uses the index.
CREATE VIEW single_events AS
    SELECT e.stream_seq AS row_seq, e.stream_seq - coalesce(cardinality(e.seqs), 1) + m.ord AS stream_seq, e.day, e.kind, m.convo_id, m.seq, e.did, m.size, e.detail, e.created_at
    FROM events e CROSS JOIN LATERAL unnest(coalesce(e.convo_ids, ARRAY[e.convo_id]), coalesce(e.seqs, ARRAY[e.seq]), coalesce(e.sizes, ARRAY[e.size]))
        WITH ORDINALITY AS m (convo_id, seq, size, ord);
CREATE VIEW single_outbox AS
    SELECT o.id, m.ord, o.kind, m.convo_id, m.seq, o.did, m.size, o.detail, o.created_at
    FROM outbox o CROSS JOIN LATERAL unnest(coalesce(o.convo_ids, ARRAY[o.convo_id]), coalesce(o.seqs, ARRAY[o.seq]), coalesce(o.sizes, ARRAY[o.size]))
        WITH ORDINALITY AS m (convo_id, seq, size, ord);

-- Where the messages of a convo are in the stream, for readers that are far behind: of messages that share their rows of events with others. A worker
-- writes it some seconds later.
CREATE TABLE convo_events (
    convo_id uuid NOT NULL,
    last     bigint NOT NULL,                                -- the place of the last one
    day      date NOT NULL,                                  -- of their events
    places   bigint[] NOT NULL,                              -- stream_seq of each; ascending
    seqs     bigint[] NOT NULL,
    sizes    integer[] NOT NULL,
    PRIMARY KEY (convo_id, last, day)
) PARTITION BY RANGE (day);

-- How far it has been written.
CREATE TABLE convo_events_end (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    last bigint NOT NULL                                     -- stream_seq
);
INSERT INTO convo_events_end (last) SELECT head FROM stream;

-- A version before this one cannot read such rows. So messages share rows once this row is there: at once if the database is new, else when no node of
-- such a version has run for some time.
INSERT INTO schema_support SELECT 28, 28 FROM stream WHERE head = 0 AND NOT EXISTS (SELECT FROM outbox) AND NOT EXISTS (SELECT FROM nodes);
