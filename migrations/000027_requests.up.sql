-- What became of single requests: those of known callers that were refused or failed, slow ones, and a sample of the others. Written in the
-- background, so a row can be missing.
CREATE TABLE requests (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,                         -- of the answer
    request_id text COLLATE "C" NOT NULL,                    -- X-Request-Id: a client can choose it, so it is not unique
    node       text COLLATE "C" NOT NULL,                    -- that answered
    nsid       text COLLATE "C" NOT NULL,
    status     integer NOT NULL,                             -- of HTTP
    error      text COLLATE "C" NOT NULL,                    -- its name; '': none
    message    text NOT NULL,                                -- of the error, as the client got it
    detail     jsonb,                                        -- the other fields of the error
    caller_did text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,                    -- the idempotency key; '': none
    convo_id   uuid,                                         -- that the request names
    replayed   boolean NOT NULL,                             -- the answer was the first one of its key
    expired    boolean NOT NULL,                             -- the key was used anew after its record's lifetime
    seconds    double precision NOT NULL                     -- that the processing took
);
CREATE INDEX requests_request_id ON requests (request_id, id);
CREATE INDEX requests_caller ON requests (caller_did, id);
CREATE INDEX requests_key ON requests (key, id) WHERE key <> '';
CREATE INDEX requests_convo ON requests (convo_id, id) WHERE convo_id IS NOT NULL;
-- Only maintenance reads and writes it.
ALTER TABLE requests ENABLE ROW LEVEL SECURITY;
ALTER TABLE requests FORCE ROW LEVEL SECURITY;
CREATE POLICY maintenance ON requests USING (current_setting('mlsd.maintenance', true) = 'on');

-- The key with which the log hashes callers. All nodes share it, so that a caller has one hash.
CREATE TABLE request_hash_key (
    key       bytea NOT NULL CHECK (octet_length(key) = 32),
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton)
);
INSERT INTO request_hash_key (key) VALUES (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));
