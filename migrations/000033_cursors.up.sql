-- Members who share their cursors see how far the others are. A node of an earlier version reads neither: it records no delivered position, and
-- nobody sees a cursor of a member that it serves.
ALTER TABLE members
    ADD COLUMN delivered_seq bigint NOT NULL DEFAULT 0;      -- the last log entry that a device has got, if it is behind cursor_seq: what is read was delivered

CREATE TABLE cursor_policies (
    did text COLLATE "C" PRIMARY KEY                         -- who has no row shares its cursors with nobody
);
