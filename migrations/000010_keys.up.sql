-- A key names one row of its owner, besides its record in idempotency_keys: the second guard behind
-- it. When the record's lifetime is over, the server retires the row's key, and the key is free for a
-- new request. A retired key stays in its column, for the audit. Application messages and proposals
-- have had such an index from the first version on; their keys last as long as the message.
--
-- Rows from before this migration count as retired. Only their records guard their keys, as before.
ALTER TABLE convos ADD COLUMN key_retired boolean NOT NULL DEFAULT true;
ALTER TABLE convos ALTER COLUMN key_retired SET DEFAULT false;
ALTER TABLE messages ADD COLUMN key_retired boolean NOT NULL DEFAULT true;
ALTER TABLE messages ALTER COLUMN key_retired SET DEFAULT false;
ALTER TABLE key_packages ADD COLUMN key_retired boolean NOT NULL DEFAULT true;
ALTER TABLE key_packages ALTER COLUMN key_retired SET DEFAULT false;

CREATE UNIQUE INDEX convos_idempotency_key ON convos (creator_did, idempotency_key) WHERE NOT key_retired;
CREATE UNIQUE INDEX messages_commit_idempotency_key ON messages (convo_id, sender_did, idempotency_key) WHERE kind = 3 AND NOT key_retired;
CREATE UNIQUE INDEX key_packages_idempotency_key ON key_packages (did, idempotency_key)
    WHERE idempotency_key IS NOT NULL AND NOT key_retired;

COMMENT ON COLUMN convos.key_retired IS 'the record of idempotency_key has ended: the key can be used again';
COMMENT ON COLUMN messages.key_retired IS 'of a commit: the record of idempotency_key has ended; other kinds keep their keys';
COMMENT ON COLUMN key_packages.key_retired IS 'the record of idempotency_key has ended: the key can be used again';
COMMENT ON COLUMN outbox.kind IS 'outbox.Kind';
