-- Moves each reader's cursor to the furthest position that is asked of it, never back. Returns the
-- outcome of each move.
--
-- $1 convos, $2 readers, $3 positions, in parallel
--
-- A row that another transaction has locked is skipped, so that its moves delay no others: they are
-- busy. A cursor that is already at the position is not written.
WITH judged AS (
    SELECT a.*, m.cursor_seq, c.last_seq, CASE
            WHEN c.id IS NULL OR m.did IS NULL THEN 'convo-not-found'
            WHEN m.left_at IS NOT NULL THEN 'not-member'
            WHEN a.seq > c.last_seq THEN 'ahead'
            ELSE 'moved'
        END AS status
    FROM unnest($1::uuid[], $2::text[], $3::bigint[]) WITH ORDINALITY AS a (convo_id, did, seq, ord)
    LEFT JOIN LATERAL (SELECT * FROM members WHERE convo_id = a.convo_id AND did = a.did LIMIT 1) m ON true
    LEFT JOIN LATERAL (SELECT * FROM convos WHERE id = a.convo_id LIMIT 1) c ON true
), merged AS (
    SELECT *, max(seq) FILTER (WHERE status = 'moved') OVER (PARTITION BY convo_id, did) AS furthest,
        row_number() OVER (PARTITION BY convo_id, did ORDER BY ord) = 1 AS first
    FROM judged
), locked AS MATERIALIZED (
    -- The lock is taken once for each cursor. The rows keep all columns of merged: without hash
    -- joins, joining the two would be a loop in a loop.
    SELECT a.*, m.cursor_seq AS locked_seq
    FROM (SELECT * FROM merged ORDER BY convo_id, did COLLATE "C", ord) a
    LEFT JOIN LATERAL (
        SELECT cursor_seq FROM members
        WHERE convo_id = a.convo_id AND did = a.did AND a.first AND a.furthest > a.cursor_seq
        FOR NO KEY UPDATE SKIP LOCKED
    ) m ON true
), moved AS (
    UPDATE members m SET cursor_seq = h.furthest
    FROM locked h
    WHERE m.convo_id = h.convo_id AND m.did = h.did AND h.locked_seq IS NOT NULL AND m.cursor_seq < h.furthest
)
SELECT CASE WHEN status = 'moved' AND cursor IS NULL THEN 'busy' ELSE status END, coalesce(last_seq, 0), coalesce(cursor, 0)
FROM (
    SELECT *, CASE
            WHEN max(locked_seq) OVER (PARTITION BY convo_id, did) IS NOT NULL
                THEN greatest(furthest, max(locked_seq) OVER (PARTITION BY convo_id, did))
            WHEN seq <= cursor_seq THEN cursor_seq
        END AS cursor
    FROM locked
) answered
ORDER BY ord
