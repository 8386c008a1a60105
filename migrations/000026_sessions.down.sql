ALTER TABLE subscription_tickets
    DROP COLUMN session_id,
    DROP COLUMN device_id,
    DROP COLUMN session_expires_at;
DROP TABLE sessions;
DROP TABLE session_clock;
DROP TABLE session_keys;
