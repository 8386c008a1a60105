-- The log entries of the convos $1 that do not have exactly one event, of those whose events are
-- kept: on the day $2 or later.
--
-- $3 is an earlier end of the stream's index. It tells the planner that few events are after the end.
--
-- No index finds the rows of events that several convos share. So the statement uses the stream's
-- index instead of these rows, as far as the index has been written. The check of the index compares
-- the two.
WITH kept AS (
	-- Events expire by the day on which they came into the stream.
	SELECT greatest($2::date::timestamptz, coalesce((SELECT min(day) FROM event_days)::timestamptz,
		(SELECT min(created_at) FROM outbox) + interval '1 millisecond', 'infinity')) AS since
), published AS (
	SELECT convo_id, seq FROM events WHERE convo_id = ANY($1::uuid[]) AND (kind <= 3 OR kind = 9) AND day >= $2::date
	UNION ALL
	SELECT i.convo_id, m.seq FROM convo_events i CROSS JOIN LATERAL unnest(i.seqs) AS m (seq)
	WHERE i.convo_id = ANY($1::uuid[]) AND i.day >= $2::date AND i.day >= (SELECT min(day) FROM event_days)
	UNION ALL
	SELECT m.convo_id, m.seq FROM events e CROSS JOIN LATERAL unnest(e.convo_ids, e.seqs) AS m (convo_id, seq)
	WHERE e.stream_seq > $3::bigint AND e.stream_seq > (SELECT last FROM convo_events_end) AND e.seqs IS NOT NULL AND m.convo_id = ANY($1::uuid[])
	UNION ALL
	SELECT convo_id, seq FROM single_outbox WHERE convo_id = ANY($1::uuid[]) AND (kind <= 3 OR kind = 9)
)
SELECT m.convo_id, format('entry %s has %s', m.seq, count(p.seq))
FROM kept
JOIN convos c ON c.id = ANY($1::uuid[])
-- The newest entry whose event is not kept.
LEFT JOIN LATERAL (
	SELECT seq FROM messages WHERE convo_id = c.id AND created_at < kept.since ORDER BY seq DESC LIMIT 1
) old ON true
JOIN messages m ON m.convo_id = c.id AND m.seq > coalesce(old.seq, 0)
LEFT JOIN published p ON p.convo_id = m.convo_id AND p.seq = m.seq
GROUP BY m.convo_id, m.seq HAVING count(p.seq) <> 1
