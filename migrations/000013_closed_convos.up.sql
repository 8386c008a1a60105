-- A commit with ReInit (RFC 9420 §11.2) closes its convo: nothing is appended after it. Both columns stay NULL in a convo that is open. A
-- server of an earlier version does not read them, and goes on appending to a closed convo until it is replaced.
ALTER TABLE convos
    ADD COLUMN closed_at          timestamptz,               -- set once, with the commit that closes it
    ADD COLUMN successor_group_id bytea;                     -- group_id of the group that replaces this one
