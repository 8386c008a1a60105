-- Makes a job for each device that is to be called because of messages or because of a Welcome. One
-- execution is for either, never for both.
--
-- If the device has a pending job already, that job stands for the new message or Welcome too. It
-- is locked until the commit, also where nothing of it changes. Jobs are made in the order of did
-- and device_id, so that two transactions cannot deadlock. A job is deferred if the device is
-- connected. A pending job that is not deferred stays so.
--
--  $1, $2  parallel: convo and sender of messages. All devices of the other members are called. The
--          sender's own devices are not, because the device that sent is unknown.
--  $3, $4  parallel: did and device_id that a Welcome is for. If that device has no target, all
--          devices of the DID are called: a client can register another device_id than in MLS.
--  $5      deliverWithin
--  $6      deferFor
WITH device AS (
	SELECT DISTINCT t.did, t.device_id, 'message' AS reason
	FROM unnest($1::uuid[], $2::text[]) AS sent (convo_id, sender_did)
	JOIN members m ON m.convo_id = sent.convo_id AND m.left_at IS NULL AND m.did <> sent.sender_did
	JOIN push_targets t ON t.did = m.did
	UNION ALL
	SELECT DISTINCT t.did, t.device_id, 'welcome'
	FROM unnest($3::text[], $4::text[]) AS r (did, device_id)
	JOIN push_targets t ON t.did = r.did
	WHERE t.device_id = r.device_id
		OR NOT EXISTS (SELECT FROM push_targets o WHERE o.did = r.did AND o.device_id = r.device_id)
)
INSERT INTO push_jobs (did, id, device_id, reason, heard_by, next_attempt_at, created_at)
SELECT did, gen_random_uuid(), device_id, reason, CASE WHEN connected THEN at + $5::interval END,
	CASE WHEN connected THEN at + $6::interval ELSE at END, at
FROM (
	SELECT device.*, clock_timestamp() AS at, EXISTS (
		SELECT FROM presence p JOIN nodes n ON n.id = p.node
		WHERE n.lease_expires_at > clock_timestamp() AND (p.did, p.device_id) = (device.did, device.device_id)
	) AS connected
	FROM device
) d
ORDER BY did, device_id
ON CONFLICT (did, device_id) WHERE state = 'pending' DO UPDATE
SET reason = CASE WHEN excluded.reason = 'welcome' THEN 'welcome' ELSE push_jobs.reason END,
	heard_by = CASE WHEN push_jobs.heard_by IS NOT NULL AND excluded.heard_by IS NOT NULL
		THEN greatest(push_jobs.heard_by, excluded.heard_by) END,
	next_attempt_at = CASE WHEN push_jobs.heard_by IS NULL THEN push_jobs.next_attempt_at ELSE excluded.next_attempt_at END,
	created_at = CASE WHEN push_jobs.heard_by IS NULL THEN push_jobs.created_at ELSE excluded.created_at END
WHERE push_jobs.heard_by IS NOT NULL OR excluded.reason = 'welcome' AND push_jobs.reason <> 'welcome'
