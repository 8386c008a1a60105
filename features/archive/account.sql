-- Counts what is stored about the DID $1. An index finds the rows of each part. Messages and former
-- memberships have no index by DID, so they are not counted. The last message is looked for among the
-- newest 100 entries of the 100 convos with the newest messages.
SELECT devices.n, kp.n, kp.available, kp.bytes, kp.last, me.present, me.created, me.oldest, me.welcomes, targets.n, jobs.n,
    records.n, records.bytes, greatest(records.last, sent.last), connected.n
FROM (
    SELECT count(*) AS n, count(*) FILTER (WHERE state = 'available' AND not_after > now()) AS available,
        coalesce(sum(octet_length(body)), 0) AS bytes, max(created_at) AS last
    FROM key_packages WHERE did = $1
) kp, (
    SELECT count(*) AS present, count(*) FILTER (WHERE EXISTS (SELECT FROM convos WHERE id = m.convo_id AND creator_did = $1)) AS created, min(joined_at) AS oldest,
        coalesce(sum((SELECT count(*) FROM welcomes w
            WHERE w.convo_id = m.convo_id AND w.recipient_did = $1 AND w.state IN ('available', 'in_flight'))), 0)::bigint AS welcomes
    FROM members m WHERE did = $1 AND left_at IS NULL
) me, (
    SELECT max(e.created_at) AS last
    FROM (
        SELECT c.id FROM members m JOIN convos c ON c.id = m.convo_id WHERE m.did = $1 AND m.left_at IS NULL
        ORDER BY c.last_message_at DESC NULLS LAST LIMIT 100
    ) newest, LATERAL (
        SELECT sender_did, created_at FROM messages WHERE convo_id = newest.id ORDER BY seq DESC LIMIT 100
    ) e
    WHERE e.sender_did = $1
) sent, (
    SELECT count(*) AS n FROM push_targets WHERE did = $1
) targets, (
    SELECT count(*) AS n FROM push_jobs WHERE did = $1
) jobs, (
    SELECT count(*) AS n, coalesce(sum(octet_length(response)), 0) AS bytes, max(created_at) AS last
    FROM idempotency_keys WHERE caller_did = $1
) records, (
    SELECT count(DISTINCT device_id) AS n FROM presence WHERE did = $1
) connected, (
    SELECT count(*) AS n FROM (
        SELECT device_id FROM key_packages WHERE did = $1
        UNION SELECT device_id FROM push_targets WHERE did = $1
    ) d
) devices
