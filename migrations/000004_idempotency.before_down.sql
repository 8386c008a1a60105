-- The down of migration 4 makes unique indexes on keys. Since migration 4 a key can be used again once its record has ended, so several
-- rows can have it. The newest one keeps it. Finding X9.
UPDATE convos c SET idempotency_key = NULL
WHERE EXISTS (SELECT FROM convos n WHERE (n.creator_did, n.idempotency_key) = (c.creator_did, c.idempotency_key)
    AND (n.created_at, n.id) > (c.created_at, c.id));
UPDATE key_packages k SET idempotency_key = NULL
WHERE EXISTS (SELECT FROM key_packages n WHERE (n.did, n.idempotency_key) = (k.did, k.idempotency_key)
    AND (n.created_at, n.ref) > (k.created_at, k.ref));
-- The column is NOT NULL here. No client's key has a control character, so the result is the key of no other row.
UPDATE messages m SET idempotency_key = m.idempotency_key || E'\x01' || m.seq
WHERE m.kind = 3 AND EXISTS (SELECT FROM messages n
    WHERE n.kind = 3 AND (n.convo_id, n.sender_did, n.idempotency_key) = (m.convo_id, m.sender_did, m.idempotency_key) AND n.seq > m.seq);
