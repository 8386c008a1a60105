ALTER TABLE members DROP COLUMN lost_races, DROP COLUMN lost_since, DROP COLUMN lost_at, DROP COLUMN lost_at_epoch, DROP COLUMN no_turn_until;
ALTER TABLE convos
    DROP COLUMN commit_level,
    DROP COLUMN reserved_for,
    DROP COLUMN reserved_until,
    ADD COLUMN group_info bytea,
    ADD COLUMN group_info_epoch bigint;
DROP TABLE public_groups;
