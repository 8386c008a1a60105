-- Examines some Welcome bytes, the oldest first, and erases the bytes that no device can fetch any
-- more.
--
-- $1 how many rows to examine
-- $2 how long bytes stay after they were added, and after the last confirmation
-- $3, $4, $5 where to begin: after the bytes with this time of adding, convo and epoch
--
-- An ended Welcome does not come back, so bytes that nobody can fetch now stay unfetchable. The
-- statement does not wait for locks. Bytes that another transaction has locked stay until the next
-- round.
WITH looked AS MATERIALIZED (
    SELECT created_at, convo_id, epoch FROM welcome_bodies
    WHERE created_at <= now() - $2::interval AND (created_at, convo_id, epoch) > ($3, $4, $5)
    ORDER BY created_at, convo_id, epoch
    LIMIT $1
), due AS MATERIALIZED (
    -- LIMIT makes each of the two subqueries a look-up in an index, not a join with all Welcomes.
    SELECT convo_id, epoch FROM looked
    WHERE (SELECT true FROM welcomes w
            WHERE w.convo_id = looked.convo_id AND w.epoch = looked.epoch AND w.state IN ('available', 'in_flight') LIMIT 1) IS NULL
        AND (SELECT true FROM welcomes w
            WHERE w.convo_id = looked.convo_id AND w.epoch = looked.epoch AND w.confirmed_at > now() - $2::interval LIMIT 1) IS NULL
), locked AS MATERIALIZED (
    SELECT due.convo_id, due.epoch FROM due CROSS JOIN LATERAL (
        SELECT FROM welcome_bodies WHERE convo_id = due.convo_id AND epoch = due.epoch FOR UPDATE SKIP LOCKED
    ) b
), erased AS (
    DELETE FROM welcome_bodies b USING locked
    WHERE b.convo_id = locked.convo_id AND b.epoch = locked.epoch
    RETURNING b.epoch
)
SELECT (SELECT count(*) FROM looked), (SELECT count(*) FROM erased), last.created_at, last.convo_id, last.epoch
FROM looked last
ORDER BY created_at DESC, convo_id DESC, epoch DESC
LIMIT 1
