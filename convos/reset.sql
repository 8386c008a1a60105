-- Opens the successor of a convo that is reset, with the convo's members. Returns whether the
-- group_id was free.
--
-- creator is the successor's, convo_creator that of the convo that ends.
--
-- Roles carry over. So does consent: a request stays a request. So does the right to report in disputes
-- (convos/disputes): a founder whose inviter is no admin now, and a member whose inviter left as an
-- admin, have no inviter in the successor. A member whose inviter left as no admin cannot report: the member's invited_by names the
-- member itself. So a reset adds no reporters, and no row names a person who is not on the roster.
WITH old AS (
    SELECT m.did, m.role, m.requested_at, m.invited_by, row_number() OVER (ORDER BY m.joined_seq, m.did <> @convo_creator, m.did) AS ord,
        m.joined_seq = 0 AND c.predecessor_id IS NULL AND m.requested_at IS NULL AS founder
    FROM members m JOIN convos c ON c.id = m.convo_id
    WHERE m.convo_id = @convo AND m.left_at IS NULL
), gone AS (
    SELECT did FROM members
    WHERE convo_id = @convo AND left_at IS NOT NULL
        AND (role <> 'member' OR coalesce(demoted_epoch = left_epoch, did = @convo_creator))
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
            WHEN old.founder AND old.invited_by NOT IN (SELECT did FROM old WHERE role <> 'member') THEN NULL
            WHEN old.invited_by IN (SELECT did FROM old) THEN old.invited_by
            WHEN old.invited_by IN (SELECT did FROM gone) THEN NULL
            ELSE old.did
        END
    FROM convo, old
    ORDER BY old.ord
)
SELECT EXISTS (SELECT FROM convo)
