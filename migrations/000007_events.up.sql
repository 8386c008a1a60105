-- What happened, for whoever listens. A write leaves its events in the outbox, in its own transaction; the sequencer moves what is
-- committed into events, where everything has one place in one order.
CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       smallint NOT NULL CHECK (kind BETWEEN 1 AND 6),  -- events.Kind
    convo_id   uuid,
    seq        bigint,                                       -- of the log entry, or of the newest one then
    did        text COLLATE "C",                             -- whom it concerns, if that is one person
    size       integer NOT NULL DEFAULT 0,                   -- bytes of the log entry's body
    detail     jsonb,                                        -- what else there is to tell, of all but log entries
    created_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX outbox_did ON outbox (did) WHERE did IS NOT NULL;

CREATE TABLE events (
    stream_seq bigint NOT NULL,                              -- 1, 2, 3 … with no gap
    day        date NOT NULL,                                -- on which it was moved here; never earlier than that of the one before
    kind       smallint NOT NULL,
    convo_id   uuid,
    seq        bigint,
    did        text COLLATE "C",
    size       integer NOT NULL,
    detail     jsonb,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (stream_seq, day)
) PARTITION BY RANGE (day);
CREATE INDEX events_convo ON events (convo_id, stream_seq);
CREATE INDEX events_did ON events (did, stream_seq) WHERE did IS NOT NULL;

-- Where the stream ends, and where each day of it began.
CREATE TABLE stream (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    head bigint NOT NULL,                                    -- stream_seq of the newest event
    day  date NOT NULL                                       -- of the newest event
);
INSERT INTO stream (head, day) VALUES (0, '2000-01-01');
CREATE TABLE event_days (
    day       date PRIMARY KEY,
    first_seq bigint NOT NULL
);

-- Good for one connection. Lost with a crash, like the jti values: a client then gets another.
CREATE UNLOGGED TABLE subscription_tickets (
    hash       bytea PRIMARY KEY,                            -- SHA-256 of the ticket
    did        text COLLATE "C" NOT NULL,
    scope      text COLLATE "C" NOT NULL,                    -- the method that it opens
    expires_at timestamptz NOT NULL
);
CREATE INDEX subscription_tickets_expiry ON subscription_tickets (expires_at);
CREATE INDEX subscription_tickets_did ON subscription_tickets (did, expires_at);

-- Which devices are connected where. A node keeps its own row alive, and with it what it says of its devices. Lost with a crash: a node
-- that misses its row says everything anew, and until then nobody counts as connected, which hides nobody.
CREATE UNLOGGED TABLE nodes (
    id               uuid PRIMARY KEY,
    synced_at        timestamptz NOT NULL,                   -- what it says of its devices is as it was then, or newer
    lease_expires_at timestamptz NOT NULL
);
CREATE UNLOGGED TABLE presence (
    did       text COLLATE "C" NOT NULL,
    device_id text COLLATE "C" NOT NULL,
    node      uuid NOT NULL REFERENCES nodes ON DELETE CASCADE,
    since     timestamptz NOT NULL,                          -- a connection that is still there began by then
    PRIMARY KEY (did, device_id, node)
);
CREATE INDEX presence_node ON presence (node);

-- A device that is connected hears of things there, and is called only if it turns out that it may not have.
ALTER TABLE push_jobs
    ADD COLUMN heard_by timestamptz,                         -- deferred: a device that was connected then has heard of all it stands for
    ADD CHECK (heard_by IS NULL OR state IN ('pending', 'done'));
INSERT INTO transitions VALUES ('push_job', 'pending', 'done');
