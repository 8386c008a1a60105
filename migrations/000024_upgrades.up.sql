-- Which mlsd can serve with this schema. A migration that an older mlsd cannot serve with adds a row, and its down deletes it. The
-- largest min_binary counts. mlsd reads the table when the schema is newer than itself; one that knows no migration 24 never does.
CREATE TABLE schema_support (
    version    bigint PRIMARY KEY,                           -- the migration that says so
    min_binary bigint NOT NULL,                              -- the newest migration that an mlsd knows must be this one or a later one
    CHECK (min_binary <= version)
);
INSERT INTO schema_support VALUES (24, 9);                   -- 9: the version before; migrations 10 to 24 only add

-- What runs where. NULL: a node of a version before this migration.
ALTER TABLE nodes
    ADD COLUMN build text,                                   -- the revision that the binary was built from
    ADD COLUMN schema_version bigint;                        -- the newest migration that it knows
