-- Empties a copy of the empty database: every table gets the rows that the migrations have
-- inserted, and every sequence starts again. That is ten times as fast as a new copy, whose files
-- the system would have to create. The newest generation of the event stream stays, so that no
-- number is used twice.
DO $$
DECLARE
    t record;
BEGIN
    PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
    SET LOCAL session_replication_role = replica; -- without triggers and foreign keys
    FOR t IN
        SELECT c.oid::regclass AS name, p.oid::regclass AS original
        FROM pg_class c LEFT JOIN pg_class p ON p.relname = c.relname AND p.relnamespace = 'original'::regnamespace
        WHERE c.relnamespace = 'public'::regnamespace AND NOT c.relispartition
            AND (c.relkind = 'p' OR c.relkind = 'r' AND pg_relation_size(c.oid) > 0) -- other tables never had a row
    LOOP
        IF t.name = 'generations'::regclass THEN
            EXECUTE format('DELETE FROM %1$s WHERE id < (SELECT max(id) FROM %1$s)', t.name);
            CONTINUE;
        END IF;
        EXECUTE format('DELETE FROM %s', t.name);
        IF t.original IS NOT NULL THEN
            EXECUTE format('INSERT INTO %s OVERRIDING SYSTEM VALUE TABLE %s', t.name, t.original);
        END IF;
    END LOOP;
    PERFORM setval(seqrelid, seqstart, false) FROM pg_sequence;
END
$$
