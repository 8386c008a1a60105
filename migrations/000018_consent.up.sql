-- Whom a person lets into its convos. A membership that the person has not accepted is a request.
-- All memberships from before count as accepted. A server of an earlier version reads neither
-- column: it adds members as accepted, and pushes to requests too.
ALTER TABLE members
    ADD COLUMN requested_at timestamptz,                     -- when it became a request; NULL: accepted
    ADD COLUMN invited_by   text COLLATE "C";                -- who added it last; NULL: the creator, or not known

-- Only the person itself lists its blocks. An invitation reads those of the people it invites.
CREATE TABLE blocks (
    did         text COLLATE "C" NOT NULL,
    blocked_did text COLLATE "C" NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (did, blocked_did)
);
CREATE INDEX blocks_of_did ON blocks (blocked_did);          -- for the erasure of an account

CREATE TABLE invitation_policies (
    did    text COLLATE "C" PRIMARY KEY,                     -- who has no row lets everyone invite it
    policy text COLLATE "C" NOT NULL CHECK (policy IN ('shared', 'nobody'))
);
