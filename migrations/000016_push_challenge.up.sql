-- A webhook is called only after it has answered a challenge. Targets that exist already stay active, and so does what a server of the
-- version before registers. All columns are new and either nullable or have a constant default: no table is rewritten.
ALTER TABLE push_targets
    ADD COLUMN state              text NOT NULL DEFAULT 'active', -- pending: to be challenged; failed: it gave no right answer
    ADD COLUMN challenge_at       timestamptz,                    -- when a pending target is challenged next
    ADD COLUMN challenge_attempts integer NOT NULL DEFAULT 0,
    ADD COLUMN missed             text,                           -- the reason of the call that a pending target could not get
    ADD COLUMN registration       uuid;                           -- a new one with each registration of the device
ALTER TABLE push_targets ADD CONSTRAINT push_targets_state CHECK (state IN ('pending', 'active', 'failed')) NOT VALID;
ALTER TABLE push_targets VALIDATE CONSTRAINT push_targets_state;
CREATE INDEX push_targets_challenge ON push_targets (challenge_at) WHERE challenge_at IS NOT NULL;

-- A connection without a cursor is sent what comes after it has attached, and nothing from before. A server of the version before leaves
-- the columns as they are.
ALTER TABLE presence
    ADD COLUMN attached_since timestamptz;                        -- a connection exists since then, with or without a cursor
ALTER TABLE push_jobs
    ADD COLUMN heard_from timestamptz;                            -- before all that a deferred job stands for; NULL: not known
