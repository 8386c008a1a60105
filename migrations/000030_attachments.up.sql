-- Encrypted files of convos. The server has their ciphertext, in a store outside the database; package attachments says how.

-- The name of this database's objects in the store: several databases can share one.
CREATE TABLE attachment_store (
    id        uuid NOT NULL DEFAULT gen_random_uuid(),
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton)
);
INSERT INTO attachment_store DEFAULT VALUES;

CREATE TABLE attachments (
    id            uuid PRIMARY KEY,
    convo_id      uuid NOT NULL,
    sender_did    text COLLATE "C" NOT NULL,                 -- who announced it
    size          bigint NOT NULL CHECK (size > 0),
    sha256        bytea NOT NULL CHECK (octet_length(sha256) = 32),
    part_size     integer NOT NULL CHECK (part_size > 0),
    state         text COLLATE "C" NOT NULL DEFAULT 'uploading'
        CHECK (state IN ('uploading', 'checking', 'complete', 'failed', 'deleted')),
    version       bigint NOT NULL DEFAULT 0,                 -- of the state
    fence         bigint NOT NULL DEFAULT 0,                 -- of the reservation whose holder checks it
    seq           bigint,                                    -- its place in the log, by which readers are judged; NULL: not complete
    checked_parts integer NOT NULL DEFAULT 0,                -- from the first on
    digest        bytea,                                     -- state of the SHA-256 behind them
    failure       text,                                      -- why it has failed
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    touched_at    timestamptz NOT NULL DEFAULT clock_timestamp(), -- when the last part came, or was checked
    kept_from     timestamptz,                               -- its retention begins: complete, or named by a message
    CHECK ((state = 'failed') <= (failure IS NOT NULL)),
    CHECK ((state = 'complete') <= (seq IS NOT NULL AND kept_from IS NOT NULL))
);
-- One content is in a convo once.
CREATE UNIQUE INDEX attachments_content ON attachments (convo_id, sha256) WHERE state IN ('uploading', 'checking', 'complete');
CREATE INDEX attachments_sender ON attachments (sender_did, id);
CREATE INDEX attachments_unfinished ON attachments (touched_at) WHERE state IN ('uploading', 'checking', 'failed');
CREATE INDEX attachments_retention ON attachments (kept_from) WHERE state = 'complete';
CREATE INDEX attachments_deleted ON attachments (id) WHERE state = 'deleted';

-- The parts that are in the store. An object is never written twice: a part that is sent again is another object.
CREATE TABLE attachment_parts (
    attachment_id uuid NOT NULL REFERENCES attachments ON DELETE CASCADE,
    part          integer NOT NULL CHECK (part > 0),
    object        text COLLATE "C" NOT NULL UNIQUE,
    sha256        bytea NOT NULL CHECK (octet_length(sha256) = 32),
    PRIMARY KEY (attachment_id, part)
);

INSERT INTO transitions VALUES
    ('attachment', 'uploading', 'checking'),
    ('attachment', 'uploading', 'deleted'),
    ('attachment', 'checking', 'uploading'),                 -- a part in the store is broken
    ('attachment', 'checking', 'complete'),
    ('attachment', 'checking', 'failed'),                    -- the content is not what was announced
    ('attachment', 'checking', 'deleted'),
    ('attachment', 'complete', 'deleted'),
    ('attachment', 'failed', 'deleted');

CREATE FUNCTION audit_attachment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := OLD.version + 1;
    PERFORM audit('attachment', NEW.id::text, OLD.state, NEW.state, NEW.version);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit BEFORE UPDATE OF state ON attachments FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_attachment();
