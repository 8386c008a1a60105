-- Deletes ended Welcomes of people who have many of them in a convo.
--
-- $1 convo, $2 people, $3 how many of each person to keep, $4 how many of each person to delete at
-- most
--
-- The statement does not wait for locks. Rows that another transaction has locked stay until the
-- next time.
WITH excess AS MATERIALIZED (
    SELECT w.id FROM unnest($2::text[]) AS person CROSS JOIN LATERAL (
        SELECT id FROM welcomes
        WHERE convo_id = $1 AND recipient_did = person AND state IN ('consumed', 'superseded', 'expired')
        ORDER BY epoch DESC
        OFFSET $3 LIMIT $4
    ) w
), locked AS MATERIALIZED (
    SELECT w.id FROM excess CROSS JOIN LATERAL (
        SELECT id FROM welcomes WHERE convo_id = $1 AND id = excess.id FOR UPDATE SKIP LOCKED
    ) w
)
DELETE FROM welcomes w USING locked WHERE w.convo_id = $1 AND w.id = locked.id
