DELETE FROM push_targets WHERE kind = 'webpush';
ALTER TABLE push_targets DROP COLUMN IF EXISTS muted;
ALTER TABLE push_targets DROP CONSTRAINT IF EXISTS push_targets_kind_check;
ALTER TABLE push_targets ADD CONSTRAINT push_targets_kind_check CHECK (kind IN ('apns', 'webhook'));
ALTER TABLE push_targets DROP COLUMN IF EXISTS auth;
ALTER TABLE push_targets DROP COLUMN IF EXISTS p256dh;
