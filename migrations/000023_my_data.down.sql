DROP INDEX key_packages_of_claimer;
DROP INDEX members_of_did;
ALTER TABLE erasures DROP COLUMN moved_at;
DROP TABLE erasure_confirmations;
