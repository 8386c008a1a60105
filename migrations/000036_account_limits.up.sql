-- An operator's limit on an account: the percentage of the rate of requests and of the daily quotas that it has.
ALTER TABLE accounts
    ADD COLUMN limit_percent  integer CHECK (limit_percent BETWEEN 1 AND 1000),   -- NULL: no limit, which is 100
    ADD COLUMN limit_until    timestamptz,                   -- NULL: until it is taken back
    ADD COLUMN limited_at     timestamptz,
    ADD COLUMN limited_by     text,
    ADD COLUMN limited_reason text,
    ADD CONSTRAINT accounts_limit CHECK (num_nonnulls(limit_percent, limited_at, limited_by, limited_reason) IN (0, 4));
CREATE INDEX accounts_limited ON accounts (did) WHERE limit_percent IS NOT NULL;
