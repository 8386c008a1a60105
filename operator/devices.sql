-- Up to $2 devices of the account $1: the available KeyPackages, the push target, the usable
-- sessions, whether a node has a connection, and when the device last published.
WITH packages AS (
    SELECT device_id, count(*) FILTER (WHERE state = 'available' AND NOT last_resort AND not_after > now()) AS available, max(created_at) AS newest
    FROM key_packages WHERE did = $1 GROUP BY device_id
), used AS (
    SELECT device_id, count(*) AS n FROM sessions WHERE did = $1 AND ended_version IS NULL AND expires_at > now() GROUP BY device_id
), connected AS (
    SELECT DISTINCT p.device_id FROM presence p JOIN nodes n ON n.id = p.node WHERE p.did = $1 AND n.lease_expires_at > now()
), known AS (
    SELECT device_id FROM packages UNION SELECT device_id FROM push_targets WHERE did = $1
    UNION SELECT device_id FROM used UNION SELECT device_id FROM connected
)
SELECT k.device_id, coalesce(p.available, 0), coalesce(t.kind, ''), coalesce(t.state, ''), coalesce(u.n, 0), c.device_id IS NOT NULL, p.newest
FROM known k
LEFT JOIN packages p ON p.device_id = k.device_id
LEFT JOIN push_targets t ON t.did = $1 AND t.device_id = k.device_id
LEFT JOIN used u ON u.device_id = k.device_id
LEFT JOIN connected c ON c.device_id = k.device_id
ORDER BY k.device_id LIMIT $2
