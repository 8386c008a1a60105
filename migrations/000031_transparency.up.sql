-- The Merkle tree over each convo's log, for clients that check the server. Leaves are computed from messages; what is here is what messages do not
-- have any more, or not yet again.

-- Hashes of trees, 256 to a row: at level 0 of the leaves, above of the rows below. A row is complete, or the last one of its level. Leaves of messages
-- that the retention deletes are written before; others once 256 of them are there and somebody asks for a head.
CREATE TABLE log_tiles (
    convo_id uuid NOT NULL,
    level    smallint NOT NULL CHECK (level >= 0),
    n        bigint NOT NULL CHECK (n >= 0),
    hashes   bytea NOT NULL CHECK (octet_length(hashes) BETWEEN 32 AND 8192 AND octet_length(hashes) % 32 = 0),
    PRIMARY KEY (convo_id, level, n)
);
ALTER TABLE log_tiles ALTER COLUMN hashes SET STORAGE EXTERNAL; -- hashes do not compress

-- What stands for a sender in the leaves of a convo: the tag is a hash of salt and DID. Made when a leaf is first computed. An erasure deletes the salt
-- and leaves the tag to the tombstone, so that the leaves stay as they are and nobody can say whose they were.
CREATE TABLE log_senders (
    convo_id uuid NOT NULL,
    did      text COLLATE "C" NOT NULL,
    salt     bytea CHECK (octet_length(salt) = 16),          -- NULL: the account was erased
    tag      bytea NOT NULL CHECK (octet_length(tag) = 32),
    PRIMARY KEY (convo_id, did)
);

-- The keys that sign heads. Several active ones sign together, so that clients that know one learn the next.
CREATE TABLE log_keys (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seed       bytea CHECK (octet_length(seed) = 32),        -- of Ed25519; NULL: it signs no more
    public     bytea NOT NULL CHECK (octet_length(public) = 32),
    created_at timestamptz NOT NULL
);

-- A version before this one deletes messages and erases senders without keeping their leaves. So heads are signed once this row is there: at once if the
-- database is new, else when no node of such a version has run for some time.
INSERT INTO schema_support SELECT 31, 31 WHERE NOT EXISTS (SELECT FROM convos) AND NOT EXISTS (SELECT FROM nodes);
