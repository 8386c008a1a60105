-- Leaked keys are given to new clients again.
ALTER TABLE log_keys DROP COLUMN withheld;
