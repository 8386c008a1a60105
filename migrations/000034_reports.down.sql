DROP TABLE abuse_reports;
