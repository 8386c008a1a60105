-- Requests become accepted: an earlier version knows no other membership.
DROP TABLE invitation_policies;
DROP TABLE blocks;
ALTER TABLE members
    DROP COLUMN requested_at,
    DROP COLUMN invited_by;
