ALTER TABLE push_jobs DROP COLUMN heard_from;
ALTER TABLE presence DROP COLUMN attached_since;
-- The version before would call targets that have not answered.
DELETE FROM push_targets WHERE state <> 'active';
DROP INDEX push_targets_challenge;
ALTER TABLE push_targets
    DROP COLUMN registration,
    DROP COLUMN missed,
    DROP COLUMN challenge_attempts,
    DROP COLUMN challenge_at,
    DROP COLUMN state;
