-- The person's log entries among the next @window entries of one convo. If the convo has no more
-- entries, the statement returns where the person's next convo begins. The ciphertexts have at most
-- @bytes together, or there is only one. Entries that exceed @bytes are left out, and so is the end
-- of the window.
WITH scanned AS (
    SELECT *, sender_did = @did AS own, lead(seq) OVER (ORDER BY seq) IS NULL AS last,
        coalesce(sum(octet_length(body)) FILTER (WHERE sender_did = @did)
            OVER (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
    FROM (
        SELECT m.* FROM messages m
        WHERE m.convo_id = @convo_id AND m.seq > @seq
            -- A person who has left has no entries after left_seq. The person's position must not
            -- reveal later entries of others.
            AND m.seq <= (SELECT coalesce(left_seq, 9223372036854775807) FROM members WHERE convo_id = @convo_id AND did = @did)
        ORDER BY m.seq LIMIT @window
    ) w
), entries AS (
    SELECT convo_id, seq,
        CASE WHEN own THEN (to_jsonb(s) - '{body,own,last,before}'::text[] || jsonb_build_object('body', encode(body, 'base64')))::text END AS data
    FROM scanned s
    WHERE (own OR last) AND (before = 0 OR before + CASE WHEN own THEN octet_length(body) ELSE 0 END <= @bytes)
    ORDER BY seq LIMIT @limit
)
SELECT convo_id, seq, data FROM entries
UNION ALL
SELECT convo_id, 0, NULL FROM (
    SELECT convo_id FROM members WHERE did = @did AND convo_id > @convo_id ORDER BY convo_id LIMIT 1
) next_convo
WHERE NOT EXISTS (SELECT FROM scanned)
