-- Which server and table the leading sequencer has read the stream in: events/place.sql gives places there only.
ALTER TABLE stream
    ADD COLUMN adopted_start timestamptz, -- pg_postmaster_start_time
    ADD COLUMN adopted_table oid;
