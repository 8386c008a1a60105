-- The signing keys of accounts, for all nodes and across restarts. A key is public: the directory of
-- its DID tells everybody. Only keys with which a token verified are here, and marks of DIDs that
-- every node must forget.
CREATE TABLE identity_keys (
    did          text COLLATE "C" PRIMARY KEY,
    key          text COLLATE "C",                           -- as a did:key; NULL: forgotten
    version      bigint NOT NULL,                            -- changes when the key is forgotten or replaced
    fetched_at   timestamptz NOT NULL,                       -- from the directory
    verified_at  timestamptz,                                -- NULL: no token of the account has verified
    forgotten_at timestamptz                                 -- the last change of version
);
CREATE INDEX identity_keys_fetched ON identity_keys (fetched_at);
CREATE INDEX identity_keys_forgotten ON identity_keys (forgotten_at) WHERE forgotten_at IS NOT NULL;
