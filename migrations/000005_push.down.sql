DROP TABLE push_jobs;
DROP FUNCTION audit_push_job;
DELETE FROM transitions WHERE entity = 'push_job';
DROP TABLE push_convos;
DROP TABLE push_targets;
