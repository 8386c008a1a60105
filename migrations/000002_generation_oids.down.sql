ALTER TABLE generations
    DROP COLUMN database_oid,
    DROP COLUMN table_oid;
