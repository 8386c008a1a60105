ALTER TABLE key_packages DROP COLUMN claimed_by_stranger;
