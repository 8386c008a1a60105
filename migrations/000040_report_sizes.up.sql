-- How many bytes of a report are sealed, in an index of the open ones: each new report sums them up, under a lock. A node of an earlier version sums what is
-- sealed. The column writes the table anew; reports are few, and none are there before migration 34.
ALTER TABLE abuse_reports ADD COLUMN size integer NOT NULL GENERATED ALWAYS AS (octet_length(sealed)) STORED;
CREATE INDEX abuse_reports_open ON abuse_reports (size) WHERE state = 'open';
