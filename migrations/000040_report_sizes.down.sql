DROP INDEX abuse_reports_open;
ALTER TABLE abuse_reports DROP COLUMN size;
