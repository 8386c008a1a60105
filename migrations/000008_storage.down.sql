DROP FUNCTION append_message;
