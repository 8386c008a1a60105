-- Who sends requests, by the hour and by what became of them: the callers with the most requests by name, and all others together.
-- The counts of all nodes, added up.
CREATE TABLE caller_counts (
    hour       timestamptz NOT NULL,
    kind       text COLLATE "C" NOT NULL,                    -- first, replay, expired, other, or the name of a conflict's error
    caller_did text COLLATE "C" NOT NULL,                    -- '': all callers without a row
    nsid       text COLLATE "C" NOT NULL,
    n          bigint NOT NULL,
    seconds    double precision NOT NULL,                    -- that the processing of these requests took
    weight     bigint NOT NULL,                              -- n, and the weight of the last row that was given up before this one came
    PRIMARY KEY (hour, kind, caller_did, nsid)
);
-- Only maintenance reads and writes it.
ALTER TABLE caller_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE caller_counts FORCE ROW LEVEL SECURITY;
CREATE POLICY maintenance ON caller_counts USING (current_setting('mlsd.maintenance', true) = 'on');

-- Why the last attempt at work outside the database came to nothing. It stays after a later attempt has succeeded.
ALTER TABLE idempotency_keys ADD COLUMN last_error text;
