ALTER TABLE installation DROP COLUMN IF EXISTS service_key;
DROP INDEX IF EXISTS sent_invitations_lot;
DROP INDEX IF EXISTS sent_invitations_new;
DROP INDEX IF EXISTS sent_invitations_due;
CREATE INDEX sent_invitations_due ON sent_invitations (service, next_attempt_at) WHERE state IN ('pending', 'sending');
ALTER TABLE sent_invitations DROP COLUMN IF EXISTS lot, DROP COLUMN IF EXISTS domain;
