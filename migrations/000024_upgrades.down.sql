ALTER TABLE nodes
    DROP COLUMN build,
    DROP COLUMN schema_version;
DROP TABLE schema_support;
