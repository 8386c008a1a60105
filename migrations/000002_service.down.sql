ALTER TABLE installation DROP COLUMN service;
