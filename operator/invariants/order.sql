-- The log entries of the convos $1 whose event does not follow the event of the entry before, among
-- the events of the day $2 and later. published.sql says from where it takes them,
-- and what $3 is.
SELECT convo_id, format('entry %s comes after entry %s', seq, before)
FROM (
	SELECT convo_id, seq, lag(seq) OVER (PARTITION BY convo_id ORDER BY later, place, ord) AS before
	FROM (
		SELECT convo_id, 0 AS later, stream_seq AS place, 0 AS ord, seq
		FROM events WHERE convo_id = ANY($1::uuid[]) AND (kind <= 3 OR kind = 9) AND day >= $2::date
		UNION ALL
		SELECT i.convo_id, 0, m.place, 0, m.seq
		FROM convo_events i CROSS JOIN LATERAL unnest(i.places, i.seqs) AS m (place, seq)
		WHERE i.convo_id = ANY($1::uuid[]) AND i.day >= $2::date AND i.day >= (SELECT min(day) FROM event_days)
		UNION ALL
		SELECT m.convo_id, 0, e.stream_seq - cardinality(e.seqs) + m.ord, 0, m.seq
		FROM events e CROSS JOIN LATERAL unnest(e.convo_ids, e.seqs) WITH ORDINALITY AS m (convo_id, seq, ord)
		WHERE e.stream_seq > $3::bigint AND e.stream_seq > (SELECT last FROM convo_events_end) AND e.seqs IS NOT NULL AND m.convo_id = ANY($1::uuid[])
		UNION ALL
		SELECT convo_id, 1, id, ord, seq FROM single_outbox WHERE convo_id = ANY($1::uuid[]) AND (kind <= 3 OR kind = 9)
	) published
) ordered
WHERE seq <> before + 1
