ALTER TABLE stream DROP COLUMN floor;
DROP TABLE generations;
