-- Several sequencers can move rows from the outbox into the stream at once. Each moves the rows of its own convos. The stream stays one: a sequencer
-- first reserves places at its end, in a short transaction, and then fills them. Readers stop before the first place that is reserved.
ALTER TABLE stream
    ADD COLUMN sequencers        smallint NOT NULL DEFAULT 1 CHECK (sequencers BETWEEN 1 AND 16),
    ADD COLUMN wanted_sequencers smallint NOT NULL DEFAULT 1 CHECK (wanted_sequencers BETWEEN 1 AND 16), -- what the operator has asked for
    ADD COLUMN barrier           bigint NOT NULL DEFAULT 0;  -- the outbox ended here when sequencers changed: sequencer 0 moves the rows up to here
COMMENT ON COLUMN stream.head IS 'the newest place that was given, or is reserved';

-- The places that are not filled yet, which are the next n behind after_seq. With one sequencer there are none.
CREATE TABLE reserved_places (
    after_seq bigint PRIMARY KEY,
    n         integer NOT NULL CHECK (n > 0),
    ids       bigint[] NOT NULL,                             -- the rows of the outbox for whose events they are
    sequencer smallint NOT NULL,                             -- who fills them
    day       date NOT NULL                                  -- of the events that fill them
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Which of the sequencers moves a row. All rows of a convo have the same one, and so have all convos of a row.
CREATE FUNCTION outbox_sequencer(convo_id uuid, did text, sequencers integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (coalesce(uuid_hash(convo_id), hashtext(did), 0) & 2147483647) % sequencers
$$;
