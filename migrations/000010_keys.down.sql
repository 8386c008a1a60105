DROP INDEX key_packages_idempotency_key;
DROP INDEX messages_commit_idempotency_key;
DROP INDEX convos_idempotency_key;
ALTER TABLE key_packages DROP COLUMN key_retired;
ALTER TABLE messages DROP COLUMN key_retired;
ALTER TABLE convos DROP COLUMN key_retired;
