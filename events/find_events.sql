-- Finds the first events of a window of the stream for a subscriber: the events of the subscriber's
-- convos during its memberships, and the events for the subscriber alone.
--
-- The subscriber did gets the events of each of its convos after the place in froms and up to that in
-- uptos, which are parallel. The window begins after the place before, and ends with the place last;
-- first_day and last_day are its days. span is the largest distance between the first and the last
-- place of a row of convo_events.
SELECT stream_seq, day, kind, convo_id, seq, did, size, detail, created_at FROM (
	SELECT e.stream_seq, e.day, e.kind, e.convo_id, e.seq, e.did, e.size, e.detail, e.created_at
	FROM unnest(@convos::uuid[], @froms::bigint[], @uptos::bigint[]) AS m (convo_id, after, upto)
	CROSS JOIN LATERAL (
		SELECT * FROM events
		WHERE convo_id = m.convo_id AND stream_seq > m.after AND stream_seq <= m.upto AND day >= @first_day AND day <= @last_day AND kind NOT IN (5, 8)
		ORDER BY stream_seq LIMIT @limit
	) e
	UNION ALL
	-- The time of a message is in its log entry.
	SELECT e.place, e.day, 1::smallint, m.convo_id, e.seq, NULL, e.size, NULL, 'epoch'
	FROM unnest(@convos::uuid[], @froms::bigint[], @uptos::bigint[]) AS m (convo_id, after, upto)
	CROSS JOIN LATERAL (
		SELECT x.day, each.place, each.seq, each.size
		FROM convo_events x CROSS JOIN LATERAL unnest(x.places, x.seqs, x.sizes) AS each (place, seq, size)
		WHERE x.convo_id = m.convo_id AND x.last > m.after AND x.last < m.upto + @span AND x.day >= @first_day AND x.day <= @last_day
			AND each.place > m.after AND each.place <= m.upto
		ORDER BY x.last, each.place LIMIT @limit
	) e
	UNION ALL
	(SELECT stream_seq, day, kind, convo_id, seq, did, size, detail, created_at FROM events
	WHERE did = @did AND stream_seq > @before AND stream_seq <= @last AND day >= @first_day AND day <= @last_day AND kind IN (5, 6, 8, 10)
	ORDER BY stream_seq LIMIT @limit)
) found
ORDER BY stream_seq LIMIT @limit
