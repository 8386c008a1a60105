-- Deletes a convo and its roster, leaves a tombstone, and inserts events that tell the members that
-- they were removed. Returns how many members the convo had.
--
-- $1 convo, $2 SHA-256 of its group_id, $3 the kind of a membership event, $4 its change
WITH convo AS (
    DELETE FROM convos WHERE id = $1 RETURNING id, epoch, last_seq
), tombstone AS (
    INSERT INTO deleted_convos (id, group_hash, deleted_at) SELECT id, $2, clock_timestamp() FROM convo
), roster AS (
    DELETE FROM members WHERE convo_id = $1 RETURNING did, left_at
), public_group AS (
    DELETE FROM public_groups WHERE convo_id = $1
), event AS (
    INSERT INTO outbox (kind, convo_id, seq, did, detail, created_at)
    SELECT $3, convo.id, convo.last_seq, roster.did,
        jsonb_build_object('change', $4::text, 'epoch', convo.epoch, 'commitNeeded', false), clock_timestamp()
    FROM convo, roster WHERE roster.left_at IS NULL
    RETURNING did
)
SELECT count(*) FROM event
