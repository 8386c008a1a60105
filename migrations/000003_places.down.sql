ALTER TABLE stream DROP COLUMN adopted_start, DROP COLUMN adopted_table;
