-- Registers a device. secret is a new one, and challenge says whether the device must answer a
-- challenge before it is called. Returns the target's secret and state.
--
-- If the device has this target already, its secret and state stay, but a failed target becomes
-- pending again. registration is new each time, so that the outcome of an older call does not
-- delete the target.
WITH new AS (
	SELECT CASE WHEN @challenge THEN 'pending' ELSE 'active' END AS state, clock_timestamp() AS at
)
INSERT INTO push_targets AS t (did, device_id, kind, address, topic, environment, secret, created_at, state, challenge_at, registration, p256dh, auth, muted)
SELECT @did, @device, @kind, @address, @topic, @environment, @secret, at, state, CASE state WHEN 'pending' THEN at END, gen_random_uuid(), @p256dh, @auth, coalesce(@muted::uuid[], array[]::uuid[]) FROM new
ON CONFLICT (did, device_id) DO UPDATE
SET kind = excluded.kind, address = excluded.address, topic = excluded.topic, environment = excluded.environment,
	registration = excluded.registration, p256dh = excluded.p256dh, auth = excluded.auth, muted = excluded.muted,
	secret = CASE WHEN (t.kind, t.address) = (excluded.kind, excluded.address) THEN t.secret ELSE excluded.secret END,
	created_at = CASE WHEN (t.kind, t.address) = (excluded.kind, excluded.address) THEN t.created_at ELSE excluded.created_at END,
	state = CASE WHEN (t.kind, t.address) = (excluded.kind, excluded.address) AND t.state <> 'failed' THEN t.state ELSE excluded.state END,
	challenge_at = CASE WHEN (t.kind, t.address) = (excluded.kind, excluded.address) AND t.state <> 'failed' THEN t.challenge_at
		ELSE excluded.challenge_at END,
	challenge_attempts = CASE WHEN (t.kind, t.address) = (excluded.kind, excluded.address) AND t.state <> 'failed'
		THEN t.challenge_attempts ELSE 0 END,
	missed = CASE WHEN excluded.state = 'pending' THEN t.missed END
RETURNING secret, state
