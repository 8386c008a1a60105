-- Indexes the messages of the next rows of events by their convos, and moves the end of the index.
--
-- $1 how many places to index, at least. The statement indexes fewer only at the end of a day,
-- because each row of the index belongs to one day and is dropped with that day.
-- $2 how many places to index, at most
-- $3 how many messages a row has, at most
WITH part AS MATERIALIZED (
	SELECT done.last AS after, next.day, until.last
	FROM convo_events_end done
	-- If days were dropped meanwhile, the next row has a later place.
	CROSS JOIN LATERAL (
		SELECT day, stream_seq - coalesce(cardinality(seqs), 1) AS before FROM events WHERE stream_seq > done.last ORDER BY stream_seq LIMIT 1
	) next
	CROSS JOIN LATERAL (
		SELECT max(stream_seq) AS last FROM events
		WHERE stream_seq > next.before AND stream_seq <= next.before + $2 AND day = next.day
	) until
	WHERE until.last >= next.before + $1 OR until.last IS NOT NULL AND EXISTS (SELECT FROM stream WHERE day > next.day)
), mine AS MATERIALIZED (
	-- Nothing is locked if there is nothing to do.
	SELECT FROM convo_events_end WHERE last = (SELECT after FROM part) FOR NO KEY UPDATE SKIP LOCKED
), message AS (
	SELECT part.day, m.convo_id, e.stream_seq - cardinality(e.seqs) + m.ord AS place, m.seq, m.size
	FROM mine, part
	CROSS JOIN LATERAL (
		SELECT stream_seq, convo_ids, seqs, sizes FROM events
		WHERE stream_seq > part.after AND stream_seq <= part.last AND day = part.day AND seqs IS NOT NULL
		ORDER BY stream_seq LIMIT $2 -- makes the planner use the index
	) e
	CROSS JOIN LATERAL unnest(e.convo_ids, e.seqs, e.sizes) WITH ORDINALITY AS m (convo_id, seq, size, ord)
), indexed AS (
	INSERT INTO convo_events (convo_id, last, day, places, seqs, sizes)
	SELECT convo_id, max(place), day, array_agg(place ORDER BY place), array_agg(seq ORDER BY place), array_agg(size ORDER BY place)
	FROM (SELECT *, (row_number() OVER (PARTITION BY convo_id ORDER BY place) - 1) / $3::bigint AS nth FROM message) m
	GROUP BY convo_id, day, nth
)
UPDATE convo_events_end SET last = part.last FROM mine, part
