-- Deletes a convo and its roster, and leaves a tombstone.
--
-- $1 convo, $2 SHA-256 of its group_id
WITH convo AS (
    DELETE FROM convos WHERE id = $1 RETURNING id
), tombstone AS (
    INSERT INTO deleted_convos (id, group_hash, deleted_at) SELECT id, $2, clock_timestamp() FROM convo
), roster AS (
    DELETE FROM members WHERE convo_id = $1
)
DELETE FROM public_groups WHERE convo_id = $1
