-- Ends the delivery that the recipient confirms, or records a failed join.
--
-- $1 convo, $2 recipient, $3 device or '', $4 KeyPackageRef or NULL
-- $5 name of the method in the audit log
-- $6 whether the join succeeded, $7 the error's details if it failed
-- $8 outbox.Arrival
--
-- A failure counts once per lease. If the client reports it again, only the details are replaced,
-- because a confirmation has no key. The count, the last details and their time stay on the row
-- across later leases.
--
-- The statement does not wait for locks. If another transaction has locked the Welcome, the caller
-- waits for the lock in a separate statement, and then tries again: see Service.
WITH audit AS MATERIALIZED (
    SELECT set_config('mlsd.caller', $2::text, true), set_config('mlsd.reason', $5::text, true)
), recipient AS MATERIALIZED (
    SELECT left_at IS NULL AS member, requested_at IS NOT NULL AS request FROM audit, members WHERE convo_id = $1 AND did = $2
), chosen AS MATERIALIZED (
    SELECT id, state, attempts > 0 AS fetched
    FROM welcomes
    WHERE convo_id = $1 AND recipient_did = $2 AND ($3::text = '' OR device_id = $3) AND ($4::bytea IS NULL OR key_package_ref = $4)
        AND (SELECT member FROM recipient)
    ORDER BY (state = 'in_flight') DESC, (state = 'available' AND attempts > 0) DESC, (state = 'consumed') DESC,
        (attempts > 0) DESC, epoch DESC, created_at DESC
    LIMIT 1
), locked AS MATERIALIZED (
    -- There is no row if another transaction has locked or changed the Welcome, or if its grace is
    -- over. A Welcome that has ended without the device's success can still be confirmed, or fail
    -- once.
    SELECT w.* FROM chosen CROSS JOIN LATERAL (
        SELECT id, NOT $6::boolean AND last_error IS NULL AS failed FROM welcomes
        WHERE convo_id = $1 AND id = chosen.id AND chosen.fetched AND state = chosen.state
            AND (state = 'available' OR state = 'in_flight' AND grace_expires_at > clock_timestamp()
                OR silent AND $6 OR (silent OR state IN ('superseded', 'expired')) AND NOT $6 AND last_error IS NULL)
        FOR UPDATE SKIP LOCKED
    ) w
), confirmed AS (
    UPDATE welcomes w
    SET state = CASE WHEN $6 THEN 'consumed' ELSE w.state END,
        confirmed_at = CASE WHEN $6 THEN clock_timestamp() ELSE w.confirmed_at END,
        silent = w.silent AND NOT $6,
        last_error = CASE WHEN NOT $6 THEN $7::text END,
        failures = w.failures + locked.failed::integer,
        last_failure = CASE WHEN $6 THEN w.last_failure ELSE $7 END,
        last_failed_at = CASE WHEN $6 THEN w.last_failed_at ELSE clock_timestamp() END,
        version = w.version + 1
    FROM locked
    WHERE w.convo_id = $1 AND w.id = locked.id
    RETURNING w.id, w.epoch, w.state, w.version, w.attempts, w.failures, locked.failed
), told AS (
    -- An event for the inviter: the sender of the commit, or the member who has opened the convo as
    -- its creator or with a reset. There is no event if the recipient blocks the inviter, or if a
    -- join fails while the convo is a request. A successful join accepts the request.
    INSERT INTO outbox (kind, convo_id, did, detail, created_at)
    SELECT $8, $1, inviter.did, jsonb_build_object('change', CASE WHEN $6 THEN 'consumed' ELSE 'failed' END, 'by', $2::text,
        'epoch', confirmed.epoch), clock_timestamp()
    FROM confirmed
    JOIN convos c ON c.id = $1
    LEFT JOIN messages commit ON commit.convo_id = $1 AND commit.kind = 3 AND commit.epoch = confirmed.epoch
    LEFT JOIN messages opening ON opening.convo_id = c.id AND opening.seq = 1 AND c.predecessor_id IS NOT NULL
    JOIN members inviter ON inviter.convo_id = $1 AND inviter.did =
        coalesce(commit.sender_did, CASE WHEN c.predecessor_id IS NULL THEN c.creator_did ELSE opening.sender_did END)
    WHERE ($6 OR confirmed.failed AND NOT (SELECT request FROM recipient)) AND inviter.left_at IS NULL
        AND NOT EXISTS (SELECT FROM blocks WHERE did = $2 AND blocked_did = inviter.did)
), audited AS (
    INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version, details)
    SELECT 'welcome', id::text, $2, state, state, $5, version, left($7, 256) FROM confirmed WHERE failed
)
SELECT recipient.member, chosen.fetched, chosen.state, confirmed.state, confirmed.failed, confirmed.id, confirmed.attempts, confirmed.failures, recipient.request
FROM (SELECT) one LEFT JOIN recipient ON true LEFT JOIN chosen ON true LEFT JOIN confirmed ON true
