-- A key names one row of its owner: the second guard, behind the record in idempotency_keys.
-- Application messages and proposals have had such an index from the first migration on; their keys
-- last as long as the message. The columns came with migration 10, so that the lock of this one lets
-- reads go on while it reads the tables.
CREATE UNIQUE INDEX convos_idempotency_key ON convos (creator_did, idempotency_key) WHERE NOT key_retired;
CREATE UNIQUE INDEX messages_commit_idempotency_key ON messages (convo_id, sender_did, idempotency_key) WHERE kind = 3 AND NOT key_retired;
CREATE UNIQUE INDEX key_packages_idempotency_key ON key_packages (did, idempotency_key)
    WHERE idempotency_key IS NOT NULL AND NOT key_retired;
