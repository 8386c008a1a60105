-- Jobs for other services are counted by the host that is called, and homes are drawn by lot.
ALTER TABLE sent_invitations
    ADD COLUMN IF NOT EXISTS domain text COLLATE "C",        -- registered domain of the host of service; NULL: of an earlier build
    ADD COLUMN IF NOT EXISTS lot double precision NOT NULL DEFAULT random(); -- place of the home among all homes; nobody can choose it

DROP INDEX IF EXISTS sent_invitations_due;
CREATE INDEX sent_invitations_due ON sent_invitations ((coalesce(domain, service)), next_attempt_at) WHERE state IN ('pending', 'sending');
CREATE INDEX IF NOT EXISTS sent_invitations_new ON sent_invitations (next_attempt_at) WHERE state = 'pending' AND attempts = 0;
CREATE INDEX IF NOT EXISTS sent_invitations_lot ON sent_invitations (lot) WHERE state IN ('pending', 'sending');

-- Nodes of one service have one key for other services. The key itself is in their files.
ALTER TABLE installation ADD COLUMN IF NOT EXISTS service_key text COLLATE "C"; -- the public half, as a Multikey; NULL: none was made
