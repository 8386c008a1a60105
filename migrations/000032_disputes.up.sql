-- Members report which epoch they have entered, and commits that they could not process.

-- What an account says of an epoch: the SHA-256 of its epoch_authenticator (RFC 9420 §8.7). Only the newest epochs of a convo are kept.
CREATE TABLE epoch_reports (
    convo_id    uuid NOT NULL,
    epoch       bigint NOT NULL,
    did         text COLLATE "C" NOT NULL,
    hash        bytea NOT NULL CHECK (octet_length(hash) = 32),
    offered     boolean NOT NULL DEFAULT false,              -- a GroupInfo of this epoch by this account has replaced the stored one
    reported_at timestamptz NOT NULL,
    PRIMARY KEY (convo_id, epoch, did)
);

CREATE INDEX epoch_reports_of_did ON epoch_reports (did, convo_id, epoch);   -- for exports

-- Epochs that two accounts have reported with different authenticators.
CREATE TABLE forked_epochs (
    convo_id  uuid NOT NULL,
    epoch     bigint NOT NULL,
    forked_at timestamptz NOT NULL,
    PRIMARY KEY (convo_id, epoch)
);

-- Accounts that could not process an accepted commit (RFC 9420 §16.12).
CREATE TABLE commit_reports (
    convo_id    uuid NOT NULL,
    epoch       bigint NOT NULL,                             -- that the commit created
    did         text COLLATE "C" NOT NULL,
    reason      text COLLATE "C" NOT NULL CHECK (length(reason) <= 64),
    reported_at timestamptz NOT NULL,
    settled_at  timestamptz,                                 -- the account is in the group again
    PRIMARY KEY (convo_id, epoch, did)
);

CREATE INDEX commit_reports_of_did ON commit_reports (did, convo_id, epoch);

-- A commit that more accounts have reported than one liar has. An epoch is disputed once at most.
CREATE TABLE disputes (
    convo_id  uuid NOT NULL,
    epoch     bigint NOT NULL,                               -- that the commit created
    committer text COLLATE "C" NOT NULL,
    state     text COLLATE "C" NOT NULL CHECK (state IN ('open', 'ended')),
    voices    integer NOT NULL,                              -- that could have reported it, when the dispute began
    reports   integer NOT NULL,                              -- voices that had
    began_at  timestamptz NOT NULL,
    ends_at   timestamptz NOT NULL,                          -- at the latest
    ended_at  timestamptz,
    PRIMARY KEY (convo_id, epoch),
    CHECK ((state = 'ended') = (ended_at IS NOT NULL))
);
CREATE INDEX disputes_open ON disputes (ends_at) WHERE state = 'open';
CREATE INDEX disputes_committer ON disputes (committer, convo_id, epoch);

INSERT INTO transitions VALUES
    ('dispute', 'none', 'open'),
    ('dispute', 'open', 'ended');
CREATE FUNCTION audit_dispute() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit('dispute', NEW.convo_id::text || ' ' || NEW.epoch, CASE WHEN TG_OP = 'INSERT' THEN 'none' ELSE OLD.state END, NEW.state,
        CASE NEW.state WHEN 'open' THEN 1 ELSE 2 END);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit_begin AFTER INSERT ON disputes FOR EACH ROW EXECUTE FUNCTION audit_dispute();
CREATE TRIGGER audit AFTER UPDATE OF state ON disputes FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_dispute();

-- The event of forks and disputes.
ALTER TABLE outbox DROP CONSTRAINT outbox_kind_check;
ALTER TABLE outbox ADD CONSTRAINT outbox_kind_check CHECK (kind BETWEEN 1 AND 7);   -- quick: the sequencer empties it

-- A version before this one does not know the event, and accepts commits in a dispute. So forks and disputes begin once this row is there: at once if the
-- database is new, else when no node of such a version has run for some time.
INSERT INTO schema_support SELECT 32, 32 FROM stream WHERE head = 0 AND NOT EXISTS (SELECT FROM outbox) AND NOT EXISTS (SELECT FROM nodes);
