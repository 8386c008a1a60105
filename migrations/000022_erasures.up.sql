-- Jobs that erase everything of an account. A job is a row that its worker takes from step to step. Each batch of a step is a transaction that
-- also moves this row, so that a job goes on where the last commit left it.
CREATE TABLE erasures (
    id           uuid PRIMARY KEY,
    did          text COLLATE "C" NOT NULL,                  -- once it is finished: a tombstone
    salt         bytea,                                      -- of the tombstones; NULL once it is finished
    requested_by text NOT NULL,                              -- operator NAME, account, or network
    reason       text NOT NULL,
    state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished')),
    step         text COLLATE "C" NOT NULL DEFAULT '',       -- the name of the present step; '': the first one
    position     text NOT NULL DEFAULT '',                   -- where the step goes on
    pass         integer NOT NULL DEFAULT 1,                 -- a search that finds something begins another pass
    counts       jsonb NOT NULL DEFAULT '{}',                -- rows that were deleted or changed, by table
    remains      jsonb NOT NULL DEFAULT '{}',                -- rows that the last search found, by table
    failures     integer NOT NULL DEFAULT 0,                 -- batches that failed
    not_before   timestamptz NOT NULL,                       -- when the next batch may begin
    begun_at     timestamptz NOT NULL,
    finished_at  timestamptz,
    CHECK ((state = 'finished') = (finished_at IS NOT NULL)),
    CHECK ((state = 'finished') = (salt IS NULL))
);
CREATE UNIQUE INDEX erasures_running ON erasures (did) WHERE state = 'running';
CREATE INDEX erasures_due ON erasures (not_before) WHERE state = 'running';

ALTER TABLE accounts ADD COLUMN erasing_at timestamptz;      -- NULL: no erasure is running
