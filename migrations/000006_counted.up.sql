-- How far getConvos has counted a member's unread messages, so that it does not count them again.
ALTER TABLE members
    ADD COLUMN IF NOT EXISTS counted_from bigint, -- the count begins behind this entry; NULL: nothing is counted
    ADD COLUMN IF NOT EXISTS counted_to bigint,   -- and ends with this one
    ADD COLUMN IF NOT EXISTS counted integer;     -- application messages of others there
