ALTER TABLE key_packages DROP COLUMN key_retired;
ALTER TABLE messages DROP COLUMN key_retired;
ALTER TABLE convos DROP COLUMN key_retired;
