-- A restored dump has another OID of the database or of the table generations: so nodes notice it.
-- NULL: not known yet. A node records it.
ALTER TABLE generations
    ADD COLUMN database_oid bigint,
    ADD COLUMN table_oid    bigint;
