-- Accounts that are more than plain callers: what the network says of them, and whether the operator has blocked them. An account without
-- a row is active and not blocked.
CREATE TABLE accounts (
    did            text COLLATE "C" PRIMARY KEY,
    status         text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'deactivated', 'suspended', 'takendown', 'deleted')),
    status_source  text,                                     -- the relay that stated it; NULL: none has
    status_seq     bigint,                                   -- the relay's
    status_at      timestamptz,                              -- the relay's time
    blocked_at     timestamptz,                              -- NULL: not blocked by the operator
    blocked_by     text,
    blocked_reason text,
    erase_after    timestamptz,                              -- NULL: is not to be erased
    erased_at      timestamptz,                              -- when its data was last erased
    version        bigint NOT NULL,                          -- of account_clock, when the row last changed
    CHECK ((blocked_at IS NULL) = (blocked_by IS NULL))
);
CREATE INDEX accounts_changed ON accounts (version);
CREATE INDEX accounts_refused ON accounts (did) WHERE status <> 'active' OR blocked_at IS NOT NULL;
CREATE INDEX accounts_due ON accounts (erase_after) WHERE erase_after IS NOT NULL;

-- Every transaction that changes who is refused raises the version first, and holds this row's lock until it ends. So versions are
-- committed in their order, and a node that has read up to a version has missed no change before it.
CREATE TABLE account_clock (
    version   bigint NOT NULL,
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton)
);
INSERT INTO account_clock (version) VALUES (0);

-- How far the events of a relay have been read.
CREATE TABLE relay_cursors (
    source     text PRIMARY KEY,                             -- the relay's kind and address
    cursor     bigint NOT NULL,
    updated_at timestamptz NOT NULL
);
