ALTER TABLE idempotency_keys DROP COLUMN last_error;
DROP TABLE caller_counts;
