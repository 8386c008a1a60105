DROP TRIGGER audit ON idempotency_keys;
DROP TRIGGER audit ON convos;
DROP TRIGGER audit ON key_packages;
DROP TRIGGER audit ON welcomes;
DROP FUNCTION audit_reservation, audit_convo, audit_key_package, audit_welcome, audit(text, text, text, text, bigint);
ALTER TABLE key_packages DROP COLUMN version;
DROP TABLE transitions, audit_log;
DROP POLICY own_records ON idempotency_keys;
ALTER TABLE idempotency_keys NO FORCE ROW LEVEL SECURITY;
ALTER TABLE idempotency_keys DISABLE ROW LEVEL SECURITY;
CREATE UNIQUE INDEX messages_commit_idempotency_key ON messages (convo_id, sender_did, idempotency_key) WHERE kind = 3;
CREATE UNIQUE INDEX key_packages_idempotency_key ON key_packages (did, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX convos_idempotency_key ON convos (creator_did, idempotency_key) WHERE idempotency_key IS NOT NULL;
ALTER TABLE idempotency_keys
    DROP COLUMN state,
    DROP COLUMN outcome,
    DROP COLUMN fence,
    DROP COLUMN started_at,
    DROP COLUMN lease_expires_at,
    DROP COLUMN completed_at,
    DROP COLUMN expires_at;
