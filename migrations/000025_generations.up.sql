-- The generations of the stream. A database that lost its newest events, by a failover or a restore, numbers other events in their places: that is
-- another generation. Cursors name theirs, so that a reader of events that are lost learns it.
CREATE TABLE generations (
    id                bigint PRIMARY KEY,                    -- 0, or the minute in which it began, since 2026 began; ascends
    after_seq         bigint NOT NULL,                       -- where the stream ended then: its first event is the next one
    system_identifier bigint,                                -- of the PostgreSQL that writes it; NULL: not known
    timeline          bigint,                                -- of that PostgreSQL; NULL: not known
    cause             text NOT NULL,                         -- first, another database, went back, or an operator
    begun_at          timestamptz NOT NULL
);
INSERT INTO generations (id, after_seq, cause, begun_at) VALUES (0, 0, 'first', now());

-- Every row of the outbox with this id or a lower one has been moved, and none comes any more. While an old snapshot keeps the rows that were moved,
-- readers begin behind them.
ALTER TABLE stream ADD COLUMN floor bigint NOT NULL DEFAULT 0;
