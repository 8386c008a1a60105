ALTER TABLE convos
    DROP COLUMN closed_at,
    DROP COLUMN successor_group_id;
