-- Accounts export their data and erase themselves.

-- What an account that wants to erase itself is given, and must show to begin. The hash is that of the DID and the token, so that a token is
-- good for one account only. Once it is used the row names its erasure and no DID: a repetition of the request finds it.
CREATE TABLE erasure_confirmations (
    hash       bytea PRIMARY KEY,                            -- SHA-256 of the DID, a space, and the token
    did        text COLLATE "C",                             -- NULL: the token is used
    erasure    uuid,                                         -- NULL: it is not used
    expires_at timestamptz NOT NULL,                         -- of an unused token
    CHECK ((did IS NULL) = (erasure IS NOT NULL))
);
CREATE UNIQUE INDEX erasure_confirmations_did ON erasure_confirmations (did) WHERE did IS NOT NULL;
CREATE INDEX erasure_confirmations_expiry ON erasure_confirmations (expires_at);

-- When the last batch of an erasure was committed; NULL: none was, or by a version before this one.
ALTER TABLE erasures ADD COLUMN moved_at timestamptz;

-- The convos of a person, those included that it has left, and the KeyPackages that it has claimed: exports and erasures go through them. The
-- locks let reads go on while they read the tables.
CREATE INDEX members_of_did ON members (did, convo_id);
CREATE INDEX key_packages_of_claimer ON key_packages (claimed_by, did, ref) WHERE claimed_by IS NOT NULL;
