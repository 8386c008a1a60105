DROP INDEX accounts_limited;
ALTER TABLE accounts
    DROP CONSTRAINT accounts_limit,
    DROP COLUMN limited_reason,
    DROP COLUMN limited_by,
    DROP COLUMN limited_at,
    DROP COLUMN limit_until,
    DROP COLUMN limit_percent;
