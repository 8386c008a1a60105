-- Admins of convos. A creator is an admin, as before. A person who stops being one is a member.
ALTER TABLE members DROP CONSTRAINT IF EXISTS members_role_check;
ALTER TABLE members ADD CONSTRAINT members_role_check CHECK (role IN ('creator', 'admin', 'member')) NOT VALID;
ALTER TABLE members VALIDATE CONSTRAINT members_role_check;

-- The epoch in which the person stopped being an admin. Proposals that it sent in this epoch as an
-- admin can still be committed.
ALTER TABLE members ADD COLUMN IF NOT EXISTS demoted_epoch bigint;

CREATE INDEX IF NOT EXISTS members_roles ON members (convo_id) WHERE role <> 'member' OR demoted_epoch IS NOT NULL;
-- Creators who left while a server without admins removed them: convos.SweepRoles hands over.
CREATE INDEX IF NOT EXISTS members_handover ON members (convo_id) WHERE role <> 'member' AND left_at IS NOT NULL;

-- Events of roles (11) and of names and descriptions (12).
ALTER TABLE outbox DROP CONSTRAINT IF EXISTS outbox_kind_check;
ALTER TABLE outbox ADD CONSTRAINT outbox_kind_check CHECK (kind BETWEEN 1 AND 12) NOT VALID;
ALTER TABLE outbox VALIDATE CONSTRAINT outbox_kind_check;
