ALTER TABLE used_tokens RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE messages RESET (autovacuum_vacuum_scale_factor);
DROP TABLE log_floors;
DROP FUNCTION append_message;
