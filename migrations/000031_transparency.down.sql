DELETE FROM schema_support WHERE version = 31;

DROP TABLE log_keys;
DROP TABLE log_senders;
DROP TABLE log_tiles;
