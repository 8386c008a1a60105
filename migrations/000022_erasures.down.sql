ALTER TABLE accounts DROP COLUMN erasing_at;
DROP TABLE erasures;
