-- When the record of a key has ended, the server retires the key of the row that the request made.
-- The key is then free for a new request. It stays in its column, for the audit. Migration 14 makes
-- the unique indexes.
--
-- Rows from before this migration count as retired. Only their records guard their keys, as before.
ALTER TABLE convos ADD COLUMN key_retired boolean NOT NULL DEFAULT true;
ALTER TABLE convos ALTER COLUMN key_retired SET DEFAULT false;
ALTER TABLE messages ADD COLUMN key_retired boolean NOT NULL DEFAULT true;
ALTER TABLE messages ALTER COLUMN key_retired SET DEFAULT false;
ALTER TABLE key_packages ADD COLUMN key_retired boolean NOT NULL DEFAULT true;
ALTER TABLE key_packages ALTER COLUMN key_retired SET DEFAULT false;

COMMENT ON COLUMN convos.key_retired IS 'the record of idempotency_key has ended: the key can be used again';
COMMENT ON COLUMN messages.key_retired IS 'of a commit: the record of idempotency_key has ended; other kinds keep their keys';
COMMENT ON COLUMN key_packages.key_retired IS 'the record of idempotency_key has ended: the key can be used again';
COMMENT ON COLUMN outbox.kind IS 'outbox.Kind';
