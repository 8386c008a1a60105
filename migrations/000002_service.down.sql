ALTER TABLE installation DROP COLUMN IF EXISTS service;
