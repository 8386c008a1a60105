-- What is public of a group at its convo's epoch (RFC 9420 §8.1, §7). There is no row where it is not known: commits are then
-- judged by less.
CREATE TABLE public_groups (
    convo_id   uuid PRIMARY KEY,
    epoch      bigint NOT NULL,                              -- the convo's
    state      bytea NOT NULL,                               -- GroupContext, confirmation_tag and ratchet_tree
    vouched_by text COLLATE "C",                             -- whose word it is; NULL: commits of others have been verified with it
    group_info bytea                                         -- of the same epoch, as it was sent; NULL: none was
);
ALTER TABLE public_groups ALTER COLUMN state SET STORAGE EXTERNAL;
ALTER TABLE public_groups ALTER COLUMN group_info SET STORAGE EXTERNAL;

-- GroupInfos that were stored before anybody verified them have never been read, and are not trusted now.
ALTER TABLE convos
    DROP COLUMN group_info,
    DROP COLUMN group_info_epoch,
    ADD COLUMN commit_level text NOT NULL DEFAULT 'header' CHECK (commit_level IN ('header', 'structure', 'verified')),
    ADD COLUMN reserved_for text COLLATE "C",                -- whose commit comes next, after it has lost too many races …
    ADD COLUMN reserved_until timestamptz,                   -- … and until when
    ADD CHECK ((reserved_for IS NULL) = (reserved_until IS NULL));

-- Races for an epoch that a member has lost one after the other, when the first and the last of them and in which epoch of the convo,
-- and until when it gets no turn because it did not take one.
ALTER TABLE members
    ADD COLUMN lost_races integer NOT NULL DEFAULT 0,
    ADD COLUMN lost_since timestamptz,
    ADD COLUMN lost_at timestamptz,
    ADD COLUMN lost_at_epoch bigint,
    ADD COLUMN no_turn_until timestamptz;
CREATE INDEX members_lost_races ON members (convo_id, lost_races) WHERE lost_races > 0;
