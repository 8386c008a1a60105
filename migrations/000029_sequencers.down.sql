DO $$
BEGIN
    IF (SELECT sequencers FROM stream) > 1 OR EXISTS (SELECT FROM reserved_places) THEN
        RAISE EXCEPTION 'the stream has several sequencers: change their number to 1 first, with mlsd sequencers 1';
    END IF;
END
$$;
DROP FUNCTION outbox_sequencer;
DROP TABLE reserved_places;
COMMENT ON COLUMN stream.head IS NULL;
ALTER TABLE stream
    DROP COLUMN sequencers,
    DROP COLUMN wanted_sequencers,
    DROP COLUMN barrier;
