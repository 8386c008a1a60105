DROP TABLE admin_actions;
DROP TABLE deleted_convos;
DELETE FROM transitions WHERE entity = 'key_package' AND from_state IN ('claimed', 'orphaned') AND to_state = 'expired';
ALTER TABLE key_packages DROP COLUMN withdrawn_at;
