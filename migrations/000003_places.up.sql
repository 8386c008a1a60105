-- Which server and table the leading sequencer has read the stream in: outbox.Place gives places there only.
ALTER TABLE stream
    ADD COLUMN adopted_start timestamptz, -- pg_postmaster_start_time
    ADD COLUMN adopted_table oid;
