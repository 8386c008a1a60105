-- Moves each reader's cursor to the furthest requested position, never back. Returns the outcome of
-- each move.
--
-- $1 convos, $2 readers, $3 read positions, $4 delivered positions, in parallel
--
-- A read position counts as delivered too, so a delivered position counts only if it is greater.
-- has_moved says, in the first row of each cursor, that one of the two positions has moved. shares
-- says that other members may see the cursor.
--
-- A row that another transaction has locked is skipped, so that its moves do not delay others. The
-- outcome of its moves is busy. A cursor that is already at the position is not written.
WITH judged AS (
    SELECT a.*, m.cursor_seq, m.delivered_seq, m.shares, c.last_seq, CASE
            WHEN c.id IS NULL OR m.did IS NULL THEN 'convo-not-found'
            WHEN m.left_at IS NOT NULL THEN 'not-member'
            WHEN greatest(a.seq, a.delivered) > c.last_seq THEN 'ahead'
            ELSE 'moved'
        END AS status
    FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS a (convo_id, did, seq, delivered, ord)
    LEFT JOIN LATERAL (
        SELECT *, requested_at IS NULL AND EXISTS (SELECT FROM policies WHERE did = a.did AND share_cursors) AS shares
        FROM members WHERE convo_id = a.convo_id AND did = a.did LIMIT 1
    ) m ON true
    LEFT JOIN LATERAL (SELECT * FROM convos WHERE id = a.convo_id LIMIT 1) c ON true
), merged AS (
    SELECT *, max(seq) FILTER (WHERE status = 'moved') OVER (PARTITION BY convo_id, did) AS furthest,
        max(delivered) FILTER (WHERE status = 'moved') OVER (PARTITION BY convo_id, did) AS furthest_delivered,
        row_number() OVER (PARTITION BY convo_id, did ORDER BY ord) = 1 AS first
    FROM judged
), locked AS MATERIALIZED (
    -- Each cursor is locked once. The rows keep all columns of merged: without hash joins, a join
    -- of the two would be a nested loop.
    SELECT a.*, m.cursor_seq AS locked_seq, m.delivered_seq AS locked_delivered
    FROM (SELECT * FROM merged ORDER BY convo_id, did COLLATE "C", ord) a
    LEFT JOIN LATERAL (
        SELECT cursor_seq, delivered_seq FROM members
        WHERE convo_id = a.convo_id AND did = a.did AND a.first
            AND (a.furthest > a.cursor_seq OR a.furthest_delivered > greatest(a.cursor_seq, a.delivered_seq))
        FOR NO KEY UPDATE SKIP LOCKED
    ) m ON true
), moved AS (
    UPDATE members m SET cursor_seq = greatest(m.cursor_seq, h.furthest), delivered_seq = greatest(m.delivered_seq, h.furthest_delivered)
    FROM locked h
    WHERE m.convo_id = h.convo_id AND m.did = h.did AND h.locked_seq IS NOT NULL
        AND (m.cursor_seq < h.furthest OR greatest(m.cursor_seq, m.delivered_seq) < h.furthest_delivered)
)
SELECT CASE WHEN status = 'moved' AND cursor IS NULL THEN 'busy' ELSE status END, coalesce(last_seq, 0), coalesce(cursor, 0),
    coalesce(greatest(cursor, delivered_cursor), 0), (locked_seq < furthest OR greatest(locked_seq, locked_delivered) < furthest_delivered) IS TRUE AS has_moved, shares IS TRUE
FROM (
    SELECT *, CASE
            WHEN max(locked_seq) OVER own IS NOT NULL THEN greatest(furthest, max(locked_seq) OVER own)
            WHEN seq <= cursor_seq AND delivered <= greatest(cursor_seq, delivered_seq) THEN cursor_seq
        END AS cursor,
        CASE WHEN max(locked_seq) OVER own IS NOT NULL THEN greatest(furthest_delivered, max(locked_delivered) OVER own) ELSE delivered_seq END AS delivered_cursor
    FROM locked
    WINDOW own AS (PARTITION BY convo_id, did)
) answered
ORDER BY ord
