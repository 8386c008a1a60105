-- Push: where devices are told that there is something to fetch. What they are told says nothing of what it is.
CREATE TABLE push_targets (
    did         text COLLATE "C" NOT NULL,
    device_id   text COLLATE "C" NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('apns', 'webhook')),
    address     text NOT NULL,                               -- the APNs device token, or the URL
    topic       text NOT NULL DEFAULT '',                    -- APNs
    environment text NOT NULL DEFAULT '',                    -- APNs: production or sandbox
    secret      text NOT NULL DEFAULT '',                    -- webhook: what its requests are signed with
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (did, device_id)
);

-- Written in the transaction of a message, one row for all members: a worker finds the devices later. The worker deletes the row in
-- the transaction that makes the jobs, and whoever writes a message meanwhile waits for it and inserts the row anew.
CREATE TABLE push_convos (
    convo_id   uuid NOT NULL,
    sender_did text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (convo_id, sender_did)
);
CREATE INDEX push_convos_age ON push_convos (created_at);

-- One call to a device. Of every device at most one job is pending: it takes in whatever else happens until it is sent. And at most one
-- is sending: under way, or waiting to be tried again. From the first attempt on it takes in nothing more: its receiver may have
-- seen its key already, and a repetition would tell it nothing new.
CREATE TABLE push_jobs (
    did             text COLLATE "C" NOT NULL,
    id              uuid NOT NULL,
    device_id       text COLLATE "C" NOT NULL,
    state           text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'done', 'dead')),
    reason          text NOT NULL CHECK (reason IN ('message', 'welcome')),
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL,                    -- while it is sending: when another may take it up
    last_error      text,
    version         bigint NOT NULL DEFAULT 0,               -- raised by whoever takes it up
    created_at      timestamptz NOT NULL,
    ended_at        timestamptz,
    PRIMARY KEY (did, id),
    CHECK ((state IN ('done', 'dead')) = (ended_at IS NOT NULL))
);
CREATE UNIQUE INDEX push_jobs_pending ON push_jobs (did, device_id) WHERE state = 'pending';
CREATE UNIQUE INDEX push_jobs_sending ON push_jobs (did, device_id) WHERE state = 'sending';
CREATE INDEX push_jobs_due ON push_jobs (next_attempt_at) WHERE state IN ('pending', 'sending');
CREATE INDEX push_jobs_retention ON push_jobs (ended_at) WHERE state IN ('done', 'dead');

INSERT INTO transitions VALUES
    ('push_job', 'pending', 'sending'),
    ('push_job', 'sending', 'done'),
    ('push_job', 'sending', 'dead');

CREATE FUNCTION audit_push_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit('push_job', NEW.id::text, OLD.state, NEW.state, NEW.version);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit AFTER UPDATE OF state ON push_jobs FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_push_job();
