DELETE FROM outbox WHERE kind > 10;
ALTER TABLE outbox DROP CONSTRAINT IF EXISTS outbox_kind_check;
ALTER TABLE outbox ADD CONSTRAINT outbox_kind_check CHECK (kind BETWEEN 1 AND 10);

DROP INDEX IF EXISTS members_handover;
DROP INDEX IF EXISTS members_roles;
ALTER TABLE members DROP COLUMN IF EXISTS demoted_epoch;
ALTER TABLE members DROP CONSTRAINT IF EXISTS members_role_check;
UPDATE members m SET role = CASE m.did WHEN c.creator_did THEN 'creator' ELSE 'member' END
FROM convos c WHERE c.id = m.convo_id AND m.role <> CASE m.did WHEN c.creator_did THEN 'creator' ELSE 'member' END;
ALTER TABLE members ADD CONSTRAINT members_role_check CHECK (role IN ('creator', 'member'));
