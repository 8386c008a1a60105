-- Sessions of clients that call directly: a bearer of an hour that a service-auth token has bought. The bearer is signed with a key that all nodes
-- share, so that no request reads these tables.

-- The keys with which sessions are signed. A reader of one can make sessions of any account while it is there: some 25 hours.
CREATE TABLE session_keys (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key        bytea NOT NULL CHECK (octet_length(key) = 32),
    created_at timestamptz NOT NULL
);

-- Every transaction that ends sessions, or changes the keys, raises the version first, and holds this row's lock until it ends. So versions are
-- committed in their order, and a node that has read up to a version has missed no change before it.
CREATE TABLE session_clock (
    version   bigint NOT NULL,
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton)
);
INSERT INTO session_clock (version) VALUES (0);

-- One row for each session. It is kept until its last bearer has expired, so that every node learns of its end.
CREATE TABLE sessions (
    id            uuid PRIMARY KEY,
    did           text COLLATE "C",                          -- NULL: the account was erased
    device_id     text COLLATE "C",                          -- NULL: the account was erased
    account_key   text COLLATE "C" NOT NULL,                 -- the account's key when the session was bought, as a did:key
    key_version   bigint NOT NULL,                           -- identity_keys.version then
    serial        integer NOT NULL DEFAULT 0,                -- how often it was refreshed
    signed_with   integer NOT NULL,                          -- the key of the newest bearer
    issued_at     timestamptz NOT NULL,                      -- the newest bearer
    expires_at    timestamptz NOT NULL,                      -- the newest bearer
    ends_at       timestamptz NOT NULL,                      -- it is not refreshed beyond
    ended_version bigint,                                    -- of session_clock; NULL: it has not been ended
    CHECK ((did IS NULL) = (device_id IS NULL)),
    CHECK (did IS NOT NULL OR ended_version IS NOT NULL)
);
CREATE INDEX sessions_of_did ON sessions (did, issued_at) WHERE did IS NOT NULL;
CREATE INDEX sessions_ended ON sessions (ended_version) WHERE ended_version IS NOT NULL;
CREATE INDEX sessions_expiry ON sessions (expires_at);

-- A ticket that a session has bought opens a stream of that session only.
ALTER TABLE subscription_tickets
    ADD COLUMN session_id         uuid,                      -- NULL: it was bought with a service-auth token
    ADD COLUMN device_id          text COLLATE "C",          -- the session's
    ADD COLUMN session_expires_at timestamptz;               -- the bearer that bought the ticket
