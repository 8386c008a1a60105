-- A join that fails leaves a trace: on the Welcome's row, where later leases and a success keep it, and in the audit log. A server of the
-- version before leaves the new columns as they are.
ALTER TABLE welcomes
    ADD COLUMN failures       integer NOT NULL DEFAULT 0,    -- leases in which the device reported that it could not join
    ADD COLUMN last_failure   text,                          -- what it said last; last_error is that of the present lease
    ADD COLUMN last_failed_at timestamptz,
    ADD COLUMN silent         boolean NOT NULL DEFAULT false; -- consumed because its grace was over, not because the device has joined
CREATE INDEX welcomes_many_attempts ON welcomes (attempts) WHERE state IN ('available', 'in_flight') AND attempts >= 5;

ALTER TABLE audit_log ADD COLUMN details text;               -- what the actor said about it
