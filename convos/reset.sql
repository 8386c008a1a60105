-- Opens the successor of a convo that is reset, with the convo's members. Returns whether the
-- group_id was free.
--
-- creator is the successor's, convo_creator that of the convo that ends.
--
-- Roles carry over. So does consent: a request stays a request. So does the right to report in disputes
-- (convos/disputes). A member whose inviter has left cannot report: the member's invited_by names
-- the member itself. So a reset adds no reporters, and no row names a person who is not on the
-- roster.
WITH old AS (
    SELECT did, role, requested_at, invited_by, row_number() OVER (ORDER BY joined_seq, did <> @convo_creator, did) AS ord
    FROM members WHERE convo_id = @convo AND left_at IS NULL
), convo AS (
    INSERT INTO convos (id, group_id, creator_did, cipher_suite, epoch, name, description, commit_level, predecessor_id, created_at)
    SELECT @successor, @successor_group, @creator, @suite, @epoch, name, description, @level, id, date_trunc('milliseconds', clock_timestamp()) FROM convos WHERE id = @convo
    ON CONFLICT (group_id) DO NOTHING
    RETURNING id, created_at
), roster AS (
    INSERT INTO members (convo_id, did, role, joined_at, joined_seq, requested_at, invited_by)
    SELECT convo.id, old.did, old.role, convo.created_at, 0, old.requested_at,
        CASE
            WHEN old.did = @creator OR old.invited_by IS NULL THEN NULL
            WHEN old.invited_by IN (SELECT did FROM old) THEN old.invited_by
            WHEN old.invited_by = @convo_creator THEN NULL
            ELSE old.did
        END
    FROM convo, old
    ORDER BY old.ord
)
SELECT EXISTS (SELECT FROM convo)
