-- Stores what a relay states about accounts. Returns the DIDs of the rows that were written.
--
-- dids, states, times and seqs are parallel, each DID once; times and seqs are those of the relay
-- source. erase_after is the time from deletion to erasure; NULL means never.
--
-- An active account without a row needs no row. Nor does an account that has nothing here and has
-- not called, because a relay carries millions of accounts. The clock is locked before any row of
-- accounts.
--
-- A statement of the same relay is older if neither its seq nor its time is newer. If a relay
-- begins its seqs anew, its times are newer. Seqs of two relays cannot be compared.
WITH relevant AS MATERIALIZED (
	SELECT s.* FROM unnest(@dids::text[], @states::text[], @times::timestamptz[], @seqs::bigint[]) AS s (did, status, at, seq)
	WHERE EXISTS (SELECT FROM accounts a WHERE a.did = s.did)
		OR s.status <> 'active' AND (
			EXISTS (SELECT FROM members m WHERE m.did = s.did AND m.left_at IS NULL)
			OR EXISTS (SELECT FROM key_packages k WHERE k.did = s.did)
			OR EXISTS (SELECT FROM push_targets t WHERE t.did = s.did)
			OR EXISTS (SELECT FROM identity_keys i WHERE i.did = s.did))
), clock AS (
	UPDATE account_clock SET version = version + 1 WHERE EXISTS (SELECT FROM relevant) RETURNING version
)
INSERT INTO accounts AS a (did, status, status_source, status_seq, status_at, erase_after, version)
SELECT did, status, @source, seq, at, CASE WHEN status = 'deleted' THEN clock_timestamp() + @erase_after::interval END, version
FROM relevant, clock
ON CONFLICT (did) DO UPDATE
SET status = excluded.status, status_source = excluded.status_source, status_seq = excluded.status_seq, status_at = excluded.status_at,
	erase_after = CASE WHEN a.status = 'deleted' AND excluded.status = 'deleted' THEN a.erase_after ELSE excluded.erase_after END,
	version = excluded.version
WHERE a.status_at IS NULL
	OR CASE WHEN a.status_source = excluded.status_source THEN excluded.status_seq > a.status_seq OR excluded.status_at > a.status_at
		ELSE excluded.status_at >= a.status_at END
RETURNING a.did
