ALTER TABLE audit_log DROP COLUMN details;

DROP INDEX welcomes_many_attempts;
ALTER TABLE welcomes
    DROP COLUMN failures,
    DROP COLUMN last_failure,
    DROP COLUMN last_failed_at,
    DROP COLUMN silent;
