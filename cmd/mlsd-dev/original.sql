-- Copies the rows that the migrations have put into a new database into a separate schema.
DO $$
DECLARE
    t record;
    filled boolean;
BEGIN
    CREATE SCHEMA original;
    FOR t IN
        SELECT oid::regclass AS name, relname FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', t.name) INTO filled;
        IF filled THEN
            EXECUTE format('CREATE TABLE original.%I AS TABLE %s', t.relname, t.name);
        END IF;
    END LOOP;
END
$$
