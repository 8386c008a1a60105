-- Names the transactions that have held locks on our tables for longer than $1, the oldest first: pid,
-- program, state, since when, since when its query runs, and the tables. Locks of reading do not
-- count. A row lock shows as a lock of its table. A prepared transaction has no pid; its program is
-- its name. What this role may not see of another's session is NULL, and such a session counts.
SELECT coalesce(l.pid, 0), coalesce(nullif(a.application_name, ''), p.gid, 'no name'),
    coalesce(a.state, CASE WHEN p.gid IS NULL THEN 'grant pg_read_all_stats to see more' ELSE 'prepared' END),
    coalesce(a.xact_start, p.prepared) AS since, a.query_start,
    string_agg(DISTINCT c.relname, ', ' ORDER BY c.relname)
FROM pg_locks l
JOIN pg_class c ON c.oid = l.relation
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts p ON l.pid IS NULL AND l.virtualtransaction = '-1/' || p.transaction
WHERE l.locktype = 'relation' AND l.granted AND l.mode <> 'AccessShareLock'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace
    AND l.pid IS DISTINCT FROM pg_backend_pid()
    AND coalesce(a.backend_type, '') <> 'autovacuum worker'
    AND coalesce(coalesce(a.xact_start, p.prepared) < clock_timestamp() - $1::interval, true)
GROUP BY 1, 2, 3, 4, 5
ORDER BY since NULLS LAST LIMIT 3
