-- Targets of Web Push: the subscription's public key and secret (RFC 8291).
ALTER TABLE push_targets ADD COLUMN IF NOT EXISTS p256dh bytea;
ALTER TABLE push_targets ADD COLUMN IF NOT EXISTS auth bytea;
ALTER TABLE push_targets DROP CONSTRAINT IF EXISTS push_targets_kind_check;
ALTER TABLE push_targets ADD CONSTRAINT push_targets_kind_check CHECK (kind IN ('apns', 'webhook', 'webpush')) NOT VALID;
ALTER TABLE push_targets VALIDATE CONSTRAINT push_targets_kind_check;

-- The convos whose messages do not call the device.
ALTER TABLE push_targets ADD COLUMN IF NOT EXISTS muted uuid[] NOT NULL DEFAULT '{}';
