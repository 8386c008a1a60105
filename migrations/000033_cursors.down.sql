-- Nobody shares its cursors any more, and delivered positions are gone.
DROP TABLE cursor_policies;
ALTER TABLE members DROP COLUMN delivered_seq;
