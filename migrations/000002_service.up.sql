-- The service whose database this is, so that a second one cannot share it by mistake.
ALTER TABLE installation ADD COLUMN IF NOT EXISTS service text COLLATE "C"; -- its DID; NULL: no node has said it yet
