-- What members report to the operator, sealed to the operator's key. The server cannot read it. Rows are deleted 180 days after the report.
-- The bytes are ciphertext, which does not compress. They stand outside the row, so that counting them reads little.
CREATE TABLE abuse_reports (
    id          uuid PRIMARY KEY,                            -- UUIDv7
    convo_id    uuid NOT NULL,                               -- it may be deleted since
    reporter    text COLLATE "C" NOT NULL,
    reason      text COLLATE "C" NOT NULL,                   -- one of a few words
    key_id      text COLLATE "C" NOT NULL,                   -- of the key that it is sealed to
    binding     bytea NOT NULL CHECK (octet_length(binding) = 32), -- SHA-256 of the convo and the reporter: the sealed bytes are bound to it
    digest      bytea NOT NULL CHECK (octet_length(digest) = 32),  -- SHA-256 of the sealed bytes: the same report is one row
    sealed      bytea NOT NULL CHECK (octet_length(sealed) <= 262144),
    reported_at timestamptz NOT NULL,
    state       text COLLATE "C" NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed')),
    closed_at   timestamptz,
    closed_by   text,                                        -- the operator, as the client names itself
    note        text,                                        -- why it was closed
    UNIQUE (binding, digest),
    CHECK ((state = 'closed') = (closed_at IS NOT NULL AND closed_by IS NOT NULL AND note IS NOT NULL))
) WITH (toast_tuple_target = 128);
ALTER TABLE abuse_reports ALTER COLUMN sealed SET STORAGE EXTERNAL;
CREATE INDEX abuse_reports_state ON abuse_reports (state, id);          -- the queue
CREATE INDEX abuse_reports_age ON abuse_reports (reported_at);          -- for the sweep
CREATE INDEX abuse_reports_reporter ON abuse_reports (reporter, id);    -- for the export and the erasure of an account
