-- Makes a job for each device to call because of messages or because of a Welcome. One execution is
-- for messages or for a Welcome, never for both.
--
-- If the device has a pending job already, that job stands for the new message or Welcome too. The
-- job is locked until the commit, even if nothing in it changes. Jobs are made in the order of did
-- and device_id, so that two transactions cannot deadlock. A job is deferred if the device is
-- connected. A pending job that is not deferred stays so.
--
-- A device whose target is not active gets no job. Its target records that a call was missed, and
-- the device is called once the target is active.
--
-- A connection without a cursor does not deliver events from before it began. So it counts only if
-- it began before the transaction of the message or Welcome. heard_from is when the transaction of
-- the job's oldest message or Welcome began.
--
--  $1, $2  parallel: convo and sender of messages. All devices of the other members who
--          have accepted the convo are called, but those that have muted it. The
--          sender's own devices are not, because the device that sent is unknown.
--  $3, $4  parallel: did and device_id that a Welcome is for. If that device has no target, all
--          devices of the DID are called: a client can register another device_id than in MLS.
--  $5      deliverWithin
--  $6      deferFor
--  $7      parallel to $1: when the oldest message's transaction began
WITH target AS (
	SELECT t.did, t.device_id, t.state, 'message' AS reason, min(sent.began) AS began
	FROM unnest($1::uuid[], $2::text[], $7::timestamptz[]) AS sent (convo_id, sender_did, began)
	JOIN members m ON m.convo_id = sent.convo_id AND m.left_at IS NULL AND m.requested_at IS NULL AND m.did <> sent.sender_did
	JOIN push_targets t ON t.did = m.did AND sent.convo_id <> ALL (t.muted)
	GROUP BY t.did, t.device_id
	UNION ALL
	SELECT DISTINCT t.did, t.device_id, t.state, 'welcome', now()
	FROM unnest($3::text[], $4::text[]) AS r (did, device_id)
	JOIN push_targets t ON t.did = r.did
	WHERE t.device_id = r.device_id
		OR NOT EXISTS (SELECT FROM push_targets o WHERE o.did = r.did AND o.device_id = r.device_id)
), missed AS (
	UPDATE push_targets t SET missed = CASE WHEN t.missed = 'welcome' THEN t.missed ELSE m.reason END
	FROM (
		SELECT p.did, p.device_id, target.reason FROM target JOIN push_targets p ON p.did = target.did AND p.device_id = target.device_id
		WHERE p.state <> 'active' ORDER BY p.did, p.device_id FOR NO KEY UPDATE OF p
	) m
	WHERE t.did = m.did AND t.device_id = m.device_id AND t.missed IS DISTINCT FROM m.reason
)
INSERT INTO push_jobs (did, id, device_id, reason, heard_by, heard_from, next_attempt_at, created_at)
SELECT did, gen_random_uuid(), device_id, reason, CASE WHEN connected THEN at + $5::interval END, CASE WHEN connected THEN began END,
	CASE WHEN connected THEN at + $6::interval ELSE at END, at
FROM (
	SELECT target.*, clock_timestamp() AS at, EXISTS (
		SELECT FROM presence p JOIN nodes n ON n.id = p.node
		WHERE n.lease_expires_at > clock_timestamp() AND (p.did, p.device_id) = (target.did, target.device_id)
			AND (p.since < 'infinity' OR p.attached_since <= target.began)
	) AS connected
	FROM target WHERE state = 'active'
) d
ORDER BY did, device_id
ON CONFLICT (did, device_id) WHERE state = 'pending' DO UPDATE
SET reason = CASE WHEN excluded.reason = 'welcome' THEN 'welcome' ELSE push_jobs.reason END,
	heard_by = CASE WHEN push_jobs.heard_by IS NOT NULL AND excluded.heard_by IS NOT NULL
		THEN greatest(push_jobs.heard_by, excluded.heard_by) END,
	heard_from = CASE WHEN push_jobs.heard_by IS NOT NULL AND excluded.heard_by IS NOT NULL AND push_jobs.heard_from IS NOT NULL
		THEN least(push_jobs.heard_from, excluded.heard_from) END,
	next_attempt_at = CASE WHEN push_jobs.heard_by IS NULL THEN push_jobs.next_attempt_at ELSE excluded.next_attempt_at END,
	created_at = CASE WHEN push_jobs.heard_by IS NULL THEN push_jobs.created_at ELSE excluded.created_at END
WHERE push_jobs.heard_by IS NOT NULL OR excluded.reason = 'welcome' AND push_jobs.reason <> 'welcome'
RETURNING id
