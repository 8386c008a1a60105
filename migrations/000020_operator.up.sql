-- A withdrawn KeyPackage is an expired one. A claim does not keep it.
ALTER TABLE key_packages ADD COLUMN withdrawn_at timestamptz; -- NULL: it was not withdrawn
INSERT INTO transitions VALUES
    ('key_package', 'claimed', 'expired'),
    ('key_package', 'orphaned', 'expired');

-- Tombstones of convos that operators have deleted. A group_id is not used again.
CREATE TABLE deleted_convos (
    id         uuid PRIMARY KEY,
    group_hash bytea NOT NULL UNIQUE,                        -- SHA-256 of the group_id
    deleted_at timestamptz NOT NULL,
    purged_at  timestamptz                                   -- NULL: a part of its log or of its Welcomes is possibly left
);
CREATE INDEX deleted_convos_unfinished ON deleted_convos (deleted_at) WHERE purged_at IS NULL;

-- What operators have done through the admin listener, by whom and why. The row is committed before
-- the first effect. A server of an earlier version does not use the table.
CREATE TABLE admin_actions (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL,
    operator text NOT NULL,                                  -- as the client names itself
    action   text COLLATE "C" NOT NULL,                      -- account.block
    subject  text COLLATE "C" NOT NULL,                      -- the parameters: a DID, the id of a convo …
    reason   text NOT NULL,
    outcome  text COLLATE "C" NOT NULL,                      -- started, done, refused: NAME, failed
    ended_at timestamptz                                     -- NULL: it runs, or its node was killed
);
