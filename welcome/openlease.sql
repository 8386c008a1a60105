-- Opens a lease on the recipient's newest Welcome, or reads its open lease.
--
-- $1 convo, $2 recipient, $3 device or '', $4 KeyPackageRef or NULL
-- $5 name of the method in the audit log
-- $6 grace
--
-- The statement does not wait for locks. If another transaction has locked the Welcome, the caller
-- waits for the lock in a separate statement, and then tries again: see Service.
WITH audit AS MATERIALIZED (
    SELECT set_config('mlsd.caller', $2::text, true), set_config('mlsd.reason', $5::text, true)
), recipient AS MATERIALIZED (
    SELECT left_at IS NULL AS member, requested_at IS NOT NULL AS request FROM audit, members WHERE convo_id = $1 AND did = $2
), chosen AS MATERIALIZED (
    SELECT id, state, key_package_ref, epoch, grace_expires_at,
        state = 'in_flight' AND grace_expires_at > clock_timestamp() AS leased
    FROM welcomes
    WHERE convo_id = $1 AND recipient_did = $2 AND ($3::text = '' OR device_id = $3) AND ($4::bytea IS NULL OR key_package_ref = $4)
        AND (SELECT member FROM recipient)
    ORDER BY (state IN ('available', 'in_flight')) DESC, epoch DESC, created_at DESC
    LIMIT 1
), locked AS MATERIALIZED (
    -- There is no row if another transaction has locked or changed the Welcome.
    SELECT w.id FROM chosen CROSS JOIN LATERAL (
        SELECT id FROM welcomes
        WHERE convo_id = $1 AND id = chosen.id AND chosen.state = 'available' AND state = 'available'
        FOR UPDATE SKIP LOCKED
    ) w
), opened AS (
    UPDATE welcomes w
    SET state = 'in_flight', attempts = w.attempts + 1, fetched_at = clock_timestamp(), last_error = NULL,
        grace_expires_at = date_trunc('milliseconds', clock_timestamp() + $6::interval), version = w.version + 1
    FROM locked
    WHERE w.convo_id = $1 AND w.id = locked.id
    RETURNING w.grace_expires_at
)
SELECT recipient.member, chosen.state, chosen.leased OR opened.grace_expires_at IS NOT NULL, chosen.key_package_ref, chosen.epoch,
    coalesce(opened.grace_expires_at, chosen.grace_expires_at),
    (SELECT body FROM welcome_bodies WHERE convo_id = $1 AND epoch = chosen.epoch LIMIT 1), recipient.request
FROM (SELECT) one LEFT JOIN recipient ON true LEFT JOIN chosen ON true LEFT JOIN opened ON true
