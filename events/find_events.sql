-- Finds the first events of a window of the stream for a subscriber: the events of the subscriber's
-- convos during its memberships, and the events for the subscriber alone.
--
-- $1 convos of the subscriber; it gets their events after the place $2 and up to the place $3
-- $4 the first and $5 the last day of the window, $6 how many events, $7 the subscriber
-- $8 the place before the window, $9 the window's last place
-- $10 the largest distance between the first and the last place of a row of convo_events
SELECT stream_seq, day, kind, convo_id, seq, did, size, detail, created_at FROM (
	SELECT e.stream_seq, e.day, e.kind, e.convo_id, e.seq, e.did, e.size, e.detail, e.created_at
	FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS m (convo_id, after, upto)
	CROSS JOIN LATERAL (
		SELECT * FROM events
		WHERE convo_id = m.convo_id AND stream_seq > m.after AND stream_seq <= m.upto AND day >= $4 AND day <= $5 AND kind NOT IN (5, 8)
		ORDER BY stream_seq LIMIT $6
	) e
	UNION ALL
	-- The time of a message is in its log entry.
	SELECT e.place, e.day, 1::smallint, m.convo_id, e.seq, NULL, e.size, NULL, 'epoch'
	FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS m (convo_id, after, upto)
	CROSS JOIN LATERAL (
		SELECT x.day, each.place, each.seq, each.size
		FROM convo_events x CROSS JOIN LATERAL unnest(x.places, x.seqs, x.sizes) AS each (place, seq, size)
		WHERE x.convo_id = m.convo_id AND x.last > m.after AND x.last < m.upto + $10 AND x.day >= $4 AND x.day <= $5
			AND each.place > m.after AND each.place <= m.upto
		ORDER BY x.last, each.place LIMIT $6
	) e
	UNION ALL
	(SELECT stream_seq, day, kind, convo_id, seq, did, size, detail, created_at FROM events
	WHERE did = $7 AND stream_seq > $8 AND stream_seq <= $9 AND day >= $4 AND day <= $5 AND kind IN (5, 6, 8, 10)
	ORDER BY stream_seq LIMIT $6)
) found
ORDER BY stream_seq LIMIT $6
