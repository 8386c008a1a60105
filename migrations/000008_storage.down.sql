DROP TABLE log_floors;
DROP FUNCTION append_message;
