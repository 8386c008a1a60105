-- The schema of the delivery service.
--
-- Every unique key contains the column by which its table could be distributed: convo_id, or the
-- DID that owns the row. Text keys collate "C", because they are identifiers, compared byte by
-- byte. No foreign key points to convos, because other rows of a deleted convo are purged later, in
-- batches.
--
-- Triggers named audit check each change of a state and write it to audit_log. "Maintenance" is a
-- transaction with the setting mlsd.maintenance = on. The last two sections explain both.


-- ==== Convos and members ====

CREATE TABLE convos (
    id                 uuid PRIMARY KEY,
    group_id           bytea NOT NULL UNIQUE,                -- MLS group_id (RFC 9420 §8.1)
    creator_did        text COLLATE "C" NOT NULL,
    cipher_suite       integer NOT NULL,                     -- RFC 9420 §17.1
    epoch              bigint NOT NULL CHECK (epoch BETWEEN 0 AND 9007199254740991), -- only package convos writes it
    last_seq           bigint NOT NULL DEFAULT 0,            -- only package messages writes it, under this row's lock
    last_message_at    timestamptz,
    name               text,
    description        text,
    idempotency_key    text COLLATE "C",                     -- idempotency key of the request that created the convo
    created_at         timestamptz NOT NULL,
    commit_level       text NOT NULL DEFAULT 'header'        -- how far the commit of the present epoch was checked
        CHECK (commit_level IN ('header', 'structure', 'verified')),
    reserved_for       text COLLATE "C",                     -- the member whose commit comes next, after too many lost races
    reserved_until     timestamptz,                          -- end of that reservation
    key_retired        boolean NOT NULL DEFAULT false,
    closed_at          timestamptz,                          -- when ReInit, a reset or an operator closed it; NULL if it is open
    successor_group_id bytea,                                -- after a reset or ReInit, group_id of the next group (RFC 9420 §11.2)
    successor_id       uuid,                                 -- after a reset, the convo that continues this one
    predecessor_id     uuid,                                 -- the convo whose reset opened this one
    CHECK ((reserved_for IS NULL) = (reserved_until IS NULL)),
    CHECK (successor_id IS NULL OR closed_at IS NOT NULL AND successor_group_id IS NOT NULL)
) WITH (fillfactor = 70);                                    -- last_seq changes with every message: leave space for HOT updates
CREATE UNIQUE INDEX convos_one_successor ON convos (predecessor_id) WHERE predecessor_id IS NOT NULL;
CREATE UNIQUE INDEX convos_idempotency_key ON convos (creator_did, idempotency_key) WHERE NOT key_retired;
COMMENT ON COLUMN convos.key_retired IS 'the record of idempotency_key has ended: the key can be used again';

-- A convo's state is its epoch, which goes up by one.
CREATE FUNCTION audit_convo() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.epoch <> OLD.epoch + 1 THEN
        RAISE EXCEPTION 'convo cannot go from % to %', OLD.epoch, NEW.epoch
            USING ERRCODE = 'MLS01', TABLE = 'convo', COLUMN = OLD.epoch::text, CONSTRAINT = NEW.epoch::text;
    END IF;
    INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version)
    VALUES ('convo', NEW.id::text, coalesce(nullif(current_setting('mlsd.caller', true), ''), 'mlsd'), OLD.epoch::text,
        NEW.epoch::text, coalesce(nullif(current_setting('mlsd.reason', true), ''), 'not stated'), NEW.epoch);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit AFTER UPDATE OF epoch ON convos FOR EACH ROW
    WHEN (OLD.epoch IS DISTINCT FROM NEW.epoch) EXECUTE FUNCTION audit_convo();

CREATE TABLE members (
    convo_id      uuid NOT NULL,
    did           text COLLATE "C" NOT NULL,
    role          text NOT NULL CHECK (role IN ('creator', 'member')),
    joined_at     timestamptz NOT NULL,
    joined_seq    bigint NOT NULL,                           -- seq of the commit that added the member: reads start here
    left_at       timestamptz,
    left_seq      bigint,
    left_epoch    bigint,                                    -- answered to each repeated leaveConvo
    cursor_seq    bigint NOT NULL DEFAULT 0,                 -- the last log entry that the member has read
    lost_races    integer NOT NULL DEFAULT 0,                -- consecutive races for an epoch that the member has lost
    lost_since    timestamptz,                               -- the first of these races
    lost_at       timestamptz,                               -- the last of these races
    lost_at_epoch bigint,                                    -- the convo's epoch at the last of these races
    no_turn_until timestamptz,                               -- no reservation before this time, because the member did not use its last one
    requested_at  timestamptz,                               -- when the membership became a request; NULL if accepted
    invited_by    text COLLATE "C",                          -- who last added the member; NULL for the creator
    delivered_seq bigint NOT NULL DEFAULT 0,                 -- the last entry that a device has received; counts only if larger than cursor_seq
    PRIMARY KEY (convo_id, did)
) WITH (fillfactor = 80);
CREATE INDEX members_convos_of_did ON members (did, convo_id) WHERE left_at IS NULL;
CREATE INDEX members_of_did ON members (did, convo_id);      -- exports and erasures, which include convos that the person has left
CREATE INDEX members_lost_races ON members (convo_id, lost_races) WHERE lost_races > 0;

-- The public part of a group at its convo's epoch (RFC 9420 §7, §8.1). If a group is not known, it
-- has no row, and only the form of its commits is checked.
CREATE TABLE public_groups (
    convo_id   uuid PRIMARY KEY,
    epoch      bigint NOT NULL,                              -- the convo's epoch
    state      bytea NOT NULL,                               -- GroupContext, confirmation_tag and ratchet_tree
    vouched_by text COLLATE "C",                             -- the member whose GroupInfo it is; NULL if it was verified, or is the creator's
    group_info bytea,                                        -- GroupInfo of the same epoch, as it was sent; NULL if none was sent
    external_senders text[] COLLATE "C" NOT NULL DEFAULT '{}' -- DIDs that may propose without being members (RFC 9420 §12.1.8.1)
);
ALTER TABLE public_groups ALTER COLUMN state SET STORAGE EXTERNAL;
ALTER TABLE public_groups ALTER COLUMN group_info SET STORAGE EXTERNAL;

-- Tombstones of convos that operators have deleted. A group_id is never used again.
CREATE TABLE deleted_convos (
    id         uuid PRIMARY KEY,
    group_hash bytea NOT NULL UNIQUE,                        -- SHA-256 of the group_id
    deleted_at timestamptz NOT NULL,
    purged_at  timestamptz                                   -- NULL while a part of its log or of its Welcomes may be left
);
CREATE INDEX deleted_convos_unfinished ON deleted_convos (deleted_at) WHERE purged_at IS NULL;


-- ==== Messages ====

-- The log of each convo.
CREATE TABLE messages (
    convo_id        uuid NOT NULL,
    seq             bigint NOT NULL CHECK (seq > 0),
    kind            smallint NOT NULL CHECK (kind IN (1, 2, 3, 9)), -- MLS content type: application, proposal, commit (RFC 9420 §6); 9: a reset
    sender_did      text COLLATE "C" NOT NULL,
    epoch           bigint NOT NULL,                         -- for a commit, the epoch that it creates
    body            bytea NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,               -- for a commit, with the method's name in front
    request_hash    bytea NOT NULL,
    embed_type      text,
    embed_uri       text,
    created_at      timestamptz NOT NULL,                    -- whole milliseconds, because it is part of the message id
    key_retired     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (convo_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0.05);              -- the space of expired messages is soon used again
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL; -- ciphertext does not compress
CREATE UNIQUE INDEX messages_idempotency_key ON messages (convo_id, sender_did, idempotency_key) WHERE kind <> 3;
CREATE UNIQUE INDEX messages_commit_idempotency_key ON messages (convo_id, sender_did, idempotency_key) WHERE kind = 3 AND NOT key_retired;
CREATE UNIQUE INDEX messages_one_commit_per_epoch ON messages (convo_id, epoch) WHERE kind = 3;
COMMENT ON COLUMN messages.key_retired IS 'of a commit: the record of idempotency_key has ended; other kinds keep their keys';

-- How far each log has expired: up to seq only proposals and commits are left. If nothing of a
-- convo has expired, it has no row. This is not a column of convos, because each message locks its
-- convo's row.
CREATE TABLE log_floors (
    convo_id uuid PRIMARY KEY,
    seq      bigint NOT NULL CHECK (seq > 0)
) WITH (fillfactor = 70);                                    -- raised in place


-- ==== Other services ====

-- The KeyPackages of other services that Welcomes here name. Each KeyPackage is used once, unless
-- it is a last resort. A row is also the job that tells the home of the KeyPackage's owner about
-- the invitation. If the invitation ends, the row becomes such a job once more.
CREATE TABLE sent_invitations (
    id              uuid PRIMARY KEY,
    did             text COLLATE "C" NOT NULL,               -- owner of the KeyPackage
    ref             bytea NOT NULL,
    last_resort     boolean NOT NULL,
    service         text COLLATE "C" NOT NULL,               -- home of did
    device_id       text COLLATE "C" NOT NULL,
    cipher_suite    integer NOT NULL,
    convo_id        uuid NOT NULL,
    inviter         text COLLATE "C" NOT NULL,
    epoch           bigint NOT NULL,                         -- the epoch that the Welcome leads into
    created_at      timestamptz NOT NULL,
    kind            text COLLATE "C" NOT NULL DEFAULT 'invited' CHECK (kind IN ('invited', 'withdrawn', 'ended')), -- what the home is told
    queued_at       timestamptz NOT NULL,                    -- when the job of this kind began
    state           text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'done', 'dead')),
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL,                    -- for a sending job, the time from which another worker may take it
    last_error      text,
    version         bigint NOT NULL DEFAULT 0,               -- goes up when a worker takes the job, or when its kind changes
    ended_at        timestamptz,
    CHECK ((state IN ('done', 'dead')) = (ended_at IS NOT NULL))
);
CREATE INDEX sent_invitations_due ON sent_invitations (service, next_attempt_at) WHERE state IN ('pending', 'sending');
CREATE UNIQUE INDEX sent_invitations_once ON sent_invitations (did, ref) WHERE NOT last_resort;
CREATE INDEX sent_invitations_of_person ON sent_invitations (did, id); -- exports, erasures and withdrawals
CREATE INDEX sent_invitations_of_inviter ON sent_invitations (inviter, id); -- exports and erasures
CREATE INDEX sent_invitations_of_convo ON sent_invitations (convo_id) WHERE kind = 'invited';
CREATE INDEX sent_invitations_age ON sent_invitations (queued_at) WHERE state IN ('pending', 'sending'); -- for the sweep
CREATE INDEX sent_invitations_retention ON sent_invitations (ended_at) WHERE ended_at IS NOT NULL;

CREATE FUNCTION audit_sent_invitation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit('sent_invitation', NEW.id::text, OLD.state, NEW.state, NEW.version);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit AFTER UPDATE OF state ON sent_invitations FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_sent_invitation();

-- Invitations of people whose home this is, as other services report them: a Welcome there names a
-- KeyPackage of a device. A KeyPackage that is not a last resort is in one row.
CREATE TABLE received_invitations (
    did          text COLLATE "C" NOT NULL,                  -- the invited person
    id           uuid NOT NULL,                              -- UUIDv7
    service      text COLLATE "C" NOT NULL,                  -- where the convo is
    domain       text COLLATE "C" NOT NULL,                  -- domain of the service
    convo_id     uuid NOT NULL,                              -- id at that service
    ref          bytea NOT NULL,
    device_id    text COLLATE "C" NOT NULL,
    cipher_suite integer NOT NULL,
    inviter      text COLLATE "C" NOT NULL,
    epoch        bigint NOT NULL,                            -- the epoch that the Welcome leads into
    expires_at   timestamptz,                                -- end of the Welcome, as the service says
    request      boolean NOT NULL,                           -- the inviter shared no convo with the person
    hidden       boolean NOT NULL,                           -- nobody sees the row, because the person refuses the inviter
    state        text COLLATE "C" NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'accepted', 'declined')), -- the person's answer
    ended        text COLLATE "C" CHECK (ended IN ('withdrawn', 'ended')), -- what the service has reported since
    created_at   timestamptz NOT NULL,
    answered_at  timestamptz,
    PRIMARY KEY (did, id),
    CHECK ((state = 'open') = (answered_at IS NULL))
);
CREATE UNIQUE INDEX received_invitations_content ON received_invitations (did, service, convo_id, ref, epoch);
CREATE INDEX received_invitations_ref ON received_invitations (did, ref);
CREATE INDEX received_invitations_of_inviter ON received_invitations (inviter, did, id); -- exports and erasures
CREATE INDEX received_invitations_retention ON received_invitations (coalesce(answered_at, created_at)) WHERE state <> 'accepted';

-- Daily budgets of invitations by people who share no convo with the invited person. A budget is
-- for one service, or for all services of a registered domain.
CREATE TABLE invitation_budgets (
    subject    text COLLATE "C" PRIMARY KEY,                 -- a DID, or domain:NAME
    per_day    bigint NOT NULL CHECK (per_day > 0),          -- grows with accepted invitations, shrinks with declined ones
    used       double precision NOT NULL CHECK (used >= 0),  -- as of counted_at; decreases by per_day in a day
    counted_at timestamptz NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX invitation_budgets_unused ON invitation_budgets (counted_at);


-- ==== KeyPackages ====

CREATE TABLE key_packages (
    did                 text COLLATE "C" NOT NULL,
    ref                 bytea NOT NULL,                      -- KeyPackageRef (RFC 9420 §5.2)
    device_id           text COLLATE "C" NOT NULL,
    cipher_suite        integer NOT NULL,
    body                bytea NOT NULL,
    not_after           timestamptz NOT NULL,
    last_resort         boolean NOT NULL,
    state               text NOT NULL DEFAULT 'available'
        CHECK (state IN ('available', 'claimed', 'consumed', 'expired', 'orphaned')),
    claimed_by          text COLLATE "C",
    claimed_at          timestamptz,
    claim_expires_at    timestamptz,
    consumed_at         timestamptz,
    idempotency_key     text COLLATE "C",                    -- idempotency key of the request that published it
    created_at          timestamptz NOT NULL,
    version             bigint NOT NULL DEFAULT 0,           -- version of the state
    key_retired         boolean NOT NULL DEFAULT false,
    withdrawn_at        timestamptz,                         -- when it was withdrawn; it then counts as expired, even if claimed
    claimed_by_outsider boolean,                             -- the owner had accepted no convo with the claimer; NULL if not claimed
    PRIMARY KEY (did, ref)
);
CREATE UNIQUE INDEX key_packages_idempotency_key ON key_packages (did, idempotency_key)
    WHERE idempotency_key IS NOT NULL AND NOT key_retired;
CREATE INDEX key_packages_available ON key_packages (did, device_id, cipher_suite, last_resort, created_at) WHERE state = 'available';
CREATE INDEX key_packages_claims ON key_packages (did, claimed_by, device_id, claimed_at) WHERE claimed_by IS NOT NULL;
CREATE INDEX key_packages_of_claimer ON key_packages (claimed_by, did, ref) WHERE claimed_by IS NOT NULL; -- for exports and erasures
-- All claimers with whom the owner has accepted no convo share one budget per device. Each of their
-- claims counts the claims so far.
CREATE INDEX key_packages_outsiders ON key_packages (did, device_id, claimed_at) WHERE claimed_by_outsider;
-- The sweeper searches by the time from which a row is due. "claimed_by IS NULL" changes no result,
-- because an available KeyPackage is not claimed. But it keeps claims off this index, which holds
-- all owners' rows.
CREATE INDEX key_packages_expiry ON key_packages (not_after) WHERE state = 'available' AND claimed_by IS NULL;
CREATE INDEX key_packages_lapse ON key_packages (claim_expires_at) WHERE state = 'claimed';
CREATE INDEX key_packages_spent ON key_packages (coalesce(consumed_at, claim_expires_at, not_after))
    WHERE state IN ('consumed', 'expired', 'orphaned');
COMMENT ON COLUMN key_packages.key_retired IS 'the record of idempotency_key has ended: the key can be used again';

CREATE FUNCTION audit_key_package() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := OLD.version + 1;
    PERFORM audit('key_package', encode(NEW.ref, 'hex'), OLD.state, NEW.state, NEW.version);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit BEFORE UPDATE OF state ON key_packages FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_key_package();

-- Tombstones: an init_key is used once, whatever happens to its KeyPackage (RFC 9420 §10).
CREATE TABLE key_package_init_keys (
    did      text COLLATE "C" NOT NULL,
    init_key bytea NOT NULL,
    ref      bytea NOT NULL,
    PRIMARY KEY (did, init_key)
);

-- Signals to an owner about a stock. A stock is the KeyPackages of one device and cipher suite. A
-- row exists as long as its signal is true.
CREATE TABLE key_package_signals (
    did          text COLLATE "C" NOT NULL,
    device_id    text COLLATE "C" NOT NULL,
    cipher_suite integer NOT NULL,
    kind         text COLLATE "C" NOT NULL CHECK (kind IN ('low', 'last_resort', 'orphaned')),
    count        integer NOT NULL,                           -- for orphaned, the lapsed claims; otherwise the number available at raised_at
    raised_at    timestamptz NOT NULL,
    PRIMARY KEY (did, device_id, cipher_suite, kind)
);
CREATE INDEX key_package_signals_retention ON key_package_signals (raised_at);


-- ==== Welcomes ====

-- One Welcome serves all devices that it names. Its bytes are stored once, under the epoch that it
-- leads into.
CREATE TABLE welcome_bodies (
    convo_id   uuid NOT NULL,
    epoch      bigint NOT NULL,
    body       bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (convo_id, epoch)
);
ALTER TABLE welcome_bodies ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX welcome_bodies_age ON welcome_bodies (created_at, convo_id, epoch); -- for the sweep

-- The delivery of a Welcome to one device.
CREATE TABLE welcomes (
    convo_id         uuid NOT NULL,
    id               uuid NOT NULL,
    recipient_did    text COLLATE "C" NOT NULL,
    device_id        text COLLATE "C" NOT NULL,
    key_package_ref  bytea NOT NULL,
    epoch            bigint NOT NULL,
    state            text NOT NULL DEFAULT 'available' CHECK (state IN ('available', 'in_flight', 'consumed', 'superseded', 'expired')),
    attempts         integer NOT NULL DEFAULT 0,             -- leases so far
    fetched_at       timestamptz,
    grace_expires_at timestamptz,                            -- end of the lease
    confirmed_at     timestamptz,
    last_error       text,                                   -- error of the present lease; the next lease clears it
    version          bigint NOT NULL DEFAULT 0,              -- goes up with each change
    created_at       timestamptz NOT NULL,
    failures         integer NOT NULL DEFAULT 0,             -- leases in which the device reported that it could not join
    last_failure     text,                                   -- the device's last report; later leases and a success keep it
    last_failed_at   timestamptz,
    silent           boolean NOT NULL DEFAULT false,         -- consumed because its grace was over, without a confirmation by the device
    PRIMARY KEY (convo_id, id),
    CHECK ((state = 'in_flight') <= (grace_expires_at IS NOT NULL)),
    CHECK ((state = 'consumed') = (confirmed_at IS NOT NULL))
);
CREATE UNIQUE INDEX welcomes_live ON welcomes (convo_id, recipient_did, device_id) WHERE state IN ('available', 'in_flight');
CREATE INDEX welcomes_of_recipient ON welcomes (convo_id, recipient_did, epoch DESC);
CREATE INDEX welcomes_grace ON welcomes (grace_expires_at) WHERE state = 'in_flight';
CREATE INDEX welcomes_retention ON welcomes (created_at) WHERE state IN ('available', 'in_flight');
CREATE INDEX welcomes_many_attempts ON welcomes (attempts) WHERE state IN ('available', 'in_flight') AND attempts >= 5;
-- The sweep of welcome_bodies searches for a Welcome that can still be fetched, and for the last
-- confirmation.
CREATE INDEX welcomes_live_of_epoch ON welcomes (convo_id, epoch) WHERE state IN ('available', 'in_flight');
CREATE INDEX welcomes_confirmed ON welcomes (convo_id, epoch, confirmed_at) WHERE confirmed_at IS NOT NULL;

CREATE FUNCTION audit_welcome() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit('welcome', NEW.id::text, OLD.state, NEW.state, NEW.version);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit AFTER UPDATE OF state ON welcomes FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_welcome();


-- ==== Idempotency ====

-- The record of a request with an idempotency key. There are two kinds. The record of a write
-- inside the database is part of the write's transaction, and is completed when others can see it.
-- The record of work outside the database is a reservation. It exists before the work begins, and
-- its holder has a lease. A fence keeps a holder without a lease from changing anything.
--
-- The record protects its key for its lifetime. convos, messages and key_packages keep the key of
-- the request that made the row. Their unique indexes protect the key too, until the key is
-- retired.
--
-- A transaction for a caller sees only that caller's records: see row-level security below.
CREATE TABLE idempotency_keys (
    caller_did       text COLLATE "C" NOT NULL,
    nsid             text COLLATE "C" NOT NULL,
    scope            text COLLATE "C" NOT NULL,              -- the convo that the method names, or ''
    key              text COLLATE "C" NOT NULL,
    request_hash     bytea NOT NULL,
    field_hashes     jsonb NOT NULL,
    response         bytea NOT NULL,                         -- a 2xx answer; other answers are not kept
    created_at       timestamptz NOT NULL,
    state            text NOT NULL DEFAULT 'completed' CHECK (state IN ('processing', 'completed', 'released')),
    outcome          text NOT NULL DEFAULT 'success' CHECK (outcome IN ('', 'success', 'partial', 'failure')),
    fence            bigint NOT NULL DEFAULT 1,              -- goes up when another attempt takes over the reservation
    started_at       timestamptz,                            -- start of the present attempt; NULL for a write inside the database
    lease_expires_at timestamptz,
    completed_at     timestamptz,
    expires_at       timestamptz NOT NULL,                   -- end of the record's lifetime
    last_error       text,                                   -- error of the last failed attempt; a later success keeps it
    PRIMARY KEY (caller_did, nsid, scope, key),
    CHECK ((state = 'processing') <= (lease_expires_at IS NOT NULL AND started_at IS NOT NULL))
);
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);
CREATE INDEX idempotency_keys_processing ON idempotency_keys (lease_expires_at) WHERE state = 'processing';

-- Only reservations are audited: nobody else sees the states of a write inside the database.
CREATE FUNCTION audit_reservation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit('reservation', NEW.nsid || ' ' || NEW.key, OLD.state, NEW.state, NEW.fence);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit AFTER UPDATE OF state ON idempotency_keys FOR EACH ROW
    WHEN (NEW.started_at IS NOT NULL AND (OLD.state, OLD.fence) IS DISTINCT FROM (NEW.state, NEW.fence))
    EXECUTE FUNCTION audit_reservation();


-- ==== Tokens and identity ====

-- Service-auth tokens that were used. The table is unlogged, so that a row costs no flush. After a
-- crash of the database a token can be used once more until it expires. The idempotency keys still
-- guard the writes.
CREATE UNLOGGED TABLE used_tokens (
    token      uuid PRIMARY KEY,                             -- the first half of the SHA-256 of iss, lxm and jti
    expires_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX used_tokens_expiry ON used_tokens (expires_at);

-- The signing keys of accounts, for all nodes and across restarts. A key is public. There are two
-- kinds of rows: keys with which a token has verified, and DIDs that every node must forget.
CREATE TABLE identity_keys (
    did          text COLLATE "C" PRIMARY KEY,
    key          text COLLATE "C",                           -- as a did:key; NULL: forgotten
    version      bigint NOT NULL,                            -- changes when the key is forgotten or replaced
    fetched_at   timestamptz NOT NULL,                       -- from the directory
    verified_at  timestamptz,                                -- NULL: no token of the account has verified
    forgotten_at timestamptz                                 -- the last change of version
);
CREATE INDEX identity_keys_fetched ON identity_keys (fetched_at);
CREATE INDEX identity_keys_forgotten ON identity_keys (forgotten_at) WHERE forgotten_at IS NOT NULL;


-- ==== Sessions ====

-- A client buys a session with a service-auth token, and then calls directly with a bearer. The
-- bearer is signed with a key that all nodes share, so that no request reads these tables.

-- The keys that sign bearers. Somebody who reads a key can make sessions of any account until the
-- key is deleted, some 25 hours after it was created.
CREATE TABLE session_keys (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key        bytea NOT NULL CHECK (octet_length(key) = 32),
    created_at timestamptz NOT NULL
);

-- A transaction that ends sessions, or changes the keys, first raises the version. It holds the
-- row's lock until it ends. So versions are committed in order, and a node that has read up to a
-- version has missed no earlier change.
CREATE TABLE session_clock (
    version   bigint NOT NULL,
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton)
);
INSERT INTO session_clock (version) VALUES (0);

-- A row stays until the last bearer of the session has expired, so that every node learns of its
-- end.
CREATE TABLE sessions (
    id            uuid PRIMARY KEY,
    did           text COLLATE "C",                          -- NULL: the account was erased
    device_id     text COLLATE "C",                          -- NULL: the account was erased
    account_key   text COLLATE "C" NOT NULL,                 -- the account's key when the session was bought, as a did:key
    key_version   bigint NOT NULL,                           -- identity_keys.version when the session was bought
    serial        integer NOT NULL DEFAULT 0,                -- the number of refreshes
    signed_with   integer NOT NULL,                          -- the session_keys.id of the newest bearer
    issued_at     timestamptz NOT NULL,                      -- of the newest bearer
    expires_at    timestamptz NOT NULL,                      -- of the newest bearer
    ends_at       timestamptz NOT NULL,                      -- no bearer lasts longer
    ended_version bigint,                                    -- of session_clock; NULL: nobody has ended it
    CHECK ((did IS NULL) = (device_id IS NULL)),
    CHECK (did IS NOT NULL OR ended_version IS NOT NULL)
);
CREATE INDEX sessions_of_did ON sessions (did, issued_at) WHERE did IS NOT NULL;
CREATE INDEX sessions_ended ON sessions (ended_version) WHERE ended_version IS NOT NULL;
CREATE INDEX sessions_expiry ON sessions (expires_at);


-- ==== Events ====

-- A write inserts its events into outbox, in its own transaction. A sequencer moves committed rows
-- into events, where each event has one place in one order: the stream.
--
-- A row of outbox or events is one event, or several application messages of one transaction. In
-- the second case convo_ids, seqs and sizes have one element per message, in order, and convo_id,
-- seq and size have no meaning. stream_seq is then the place of the last message.

CREATE TABLE outbox (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       smallint NOT NULL CHECK (kind BETWEEN 1 AND 10),
    convo_id   uuid,
    seq        bigint,                                       -- of the log entry, or of the newest entry at the event
    did        text COLLATE "C",                             -- the person whom the event concerns; NULL: not one person
    size       integer NOT NULL DEFAULT 0,                   -- bytes of the log entry's body
    detail     jsonb,                                        -- outbox.Detail
    created_at timestamptz NOT NULL,
    convo_ids  uuid[],
    seqs       bigint[],
    sizes      integer[]
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    toast_tuple_target = 8160);                              -- 256 messages stay in the row
ALTER TABLE outbox ALTER COLUMN convo_ids SET STORAGE EXTERNAL, ALTER COLUMN seqs SET STORAGE EXTERNAL,
    ALTER COLUMN sizes SET STORAGE EXTERNAL;
CREATE INDEX outbox_did ON outbox (did) WHERE did IS NOT NULL;
COMMENT ON COLUMN outbox.kind IS 'outbox.Kind';

CREATE TABLE events (
    stream_seq bigint NOT NULL,                              -- 1, 2, 3 … without a gap
    day        date NOT NULL,                                -- when the event was moved here; never decreases along the stream
    kind       smallint NOT NULL,                            -- outbox.Kind
    convo_id   uuid,
    seq        bigint,
    did        text COLLATE "C",
    size       integer NOT NULL,
    detail     jsonb,
    created_at timestamptz NOT NULL,
    convo_ids  uuid[],
    seqs       bigint[],
    sizes      integer[],
    PRIMARY KEY (stream_seq, day)
) PARTITION BY RANGE (day);
ALTER TABLE events ALTER COLUMN convo_ids SET STORAGE EXTERNAL, ALTER COLUMN seqs SET STORAGE EXTERNAL,
    ALTER COLUMN sizes SET STORAGE EXTERNAL;
CREATE INDEX events_convo ON events (convo_id, stream_seq);
CREATE INDEX events_did ON events (did, stream_seq) WHERE did IS NOT NULL;

-- Both tables with one row per event. row_seq is the stream_seq of the row in events: a condition
-- on it uses the index.
CREATE VIEW single_outbox AS
    SELECT o.id, m.ord, o.kind, m.convo_id, m.seq, o.did, m.size, o.detail, o.created_at
    FROM outbox o
    CROSS JOIN LATERAL unnest(
        coalesce(o.convo_ids, ARRAY[o.convo_id]), coalesce(o.seqs, ARRAY[o.seq]), coalesce(o.sizes, ARRAY[o.size])
    ) WITH ORDINALITY AS m (convo_id, seq, size, ord);
CREATE VIEW single_events AS
    SELECT e.stream_seq AS row_seq, e.stream_seq - coalesce(cardinality(e.seqs), 1) + m.ord AS stream_seq,
        e.day, e.kind, m.convo_id, m.seq, e.did, m.size, e.detail, e.created_at
    FROM events e
    CROSS JOIN LATERAL unnest(
        coalesce(e.convo_ids, ARRAY[e.convo_id]), coalesce(e.seqs, ARRAY[e.seq]), coalesce(e.sizes, ARRAY[e.size])
    ) WITH ORDINALITY AS m (convo_id, seq, size, ord);

-- The end of the stream.
CREATE TABLE stream (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    head  bigint NOT NULL,                                   -- the newest place that was given
    day   date NOT NULL,                                     -- of the newest place
    floor bigint NOT NULL DEFAULT 0                          -- outbox rows with this id or a lower id are moved, and no more can come
);
INSERT INTO stream (head, day) VALUES (0, '2000-01-01');

-- Where each day of the stream begins.
CREATE TABLE event_days (
    day       date PRIMARY KEY,
    first_seq bigint NOT NULL
);

-- The generations of the stream. A database that has lost its newest events, by a failover or a
-- restore, gives their places to other events: that begins a generation. A cursor names its
-- generation, so that its reader learns of lost events.
CREATE TABLE generations (
    id                bigint PRIMARY KEY,                    -- 0, or the minute of begun_at, counted from 2026; ascends
    after_seq         bigint NOT NULL,                       -- the end of the stream when the generation began
    system_identifier bigint,                                -- of the PostgreSQL that writes the generation; NULL: not known
    timeline          bigint,                                -- of that PostgreSQL; NULL: not known
    cause             text NOT NULL,                         -- first, another database, went back, or an operator
    begun_at          timestamptz NOT NULL,
    -- A restored dump has another OID of the database or of this table, so nodes notice the
    -- restore. NULL: not known yet. A node records the OID.
    database_oid      bigint,
    table_oid         bigint
);
INSERT INTO generations (id, after_seq, cause, begun_at) VALUES (0, 0, 'first', now());

-- An index by convo for readers that are far behind. It covers messages that share a row of events.
-- A worker writes the index some seconds after the events.
CREATE TABLE convo_events (
    convo_id uuid NOT NULL,
    last     bigint NOT NULL,                                -- the last of places
    day      date NOT NULL,                                  -- of the events
    places   bigint[] NOT NULL,                              -- stream_seq of each message; ascending
    seqs     bigint[] NOT NULL,
    sizes    integer[] NOT NULL,
    PRIMARY KEY (convo_id, last, day)
) PARTITION BY RANGE (day);

-- The end of that index.
CREATE TABLE convo_events_end (
    one  boolean PRIMARY KEY DEFAULT true CHECK (one),
    last bigint NOT NULL                                     -- a stream_seq
);
INSERT INTO convo_events_end (last) VALUES (0);

-- A ticket opens one subscription. If a session has bought it, it opens a stream of that session
-- only. Unlogged: after a crash of the database the client asks for another.
CREATE UNLOGGED TABLE subscription_tickets (
    hash               bytea PRIMARY KEY,                    -- SHA-256 of the ticket
    did                text COLLATE "C" NOT NULL,
    scope              text COLLATE "C" NOT NULL,            -- the method that it opens
    expires_at         timestamptz NOT NULL,
    session_id         uuid,                                 -- NULL: bought with a service-auth token
    device_id          text COLLATE "C",                     -- the session's
    session_expires_at timestamptz                           -- of the bearer that bought the ticket
);
CREATE INDEX subscription_tickets_expiry ON subscription_tickets (expires_at);
CREATE INDEX subscription_tickets_did ON subscription_tickets (did, expires_at);

-- The nodes, and the devices that are connected to each. A node renews its own row. Unlogged: after
-- a crash of the database a node does not find its row, and writes everything again. Until then no
-- device counts as connected.
CREATE UNLOGGED TABLE nodes (
    id               uuid PRIMARY KEY,
    synced_at        timestamptz NOT NULL,                   -- the node's rows of presence are as of then, or newer
    lease_expires_at timestamptz NOT NULL,
    build            text NOT NULL,                          -- the revision that the binary was built from
    schema_version   bigint NOT NULL                         -- the newest migration that the binary knows
);
CREATE UNLOGGED TABLE presence (
    did            text COLLATE "C" NOT NULL,
    device_id      text COLLATE "C" NOT NULL,
    node           uuid NOT NULL REFERENCES nodes ON DELETE CASCADE,
    since          timestamptz NOT NULL,                     -- since then a connection with a cursor exists; infinity: none exists
    attached_since timestamptz,                              -- since then a connection exists, with or without a cursor
    PRIMARY KEY (did, device_id, node)
);
CREATE INDEX presence_node ON presence (node);


-- ==== Push ====

-- The server calls a device when there is something to fetch. The call does not say what to fetch.

-- Where devices are called. A webhook is called only after it has answered a challenge.
CREATE TABLE push_targets (
    did                text COLLATE "C" NOT NULL,
    device_id          text COLLATE "C" NOT NULL,
    kind               text NOT NULL CHECK (kind IN ('apns', 'webhook')),
    address            text NOT NULL,                        -- the APNs device token, or the URL
    topic              text NOT NULL DEFAULT '',             -- APNs
    environment        text NOT NULL DEFAULT '',             -- APNs: production or sandbox
    secret             text NOT NULL DEFAULT '',             -- webhook: signs its requests
    created_at         timestamptz NOT NULL,
    state              text NOT NULL DEFAULT 'active'        -- pending: to be challenged; failed: it did not answer correctly
        CONSTRAINT push_targets_state CHECK (state IN ('pending', 'active', 'failed')),
    challenge_at       timestamptz,                          -- the next challenge of a pending target
    challenge_attempts integer NOT NULL DEFAULT 0,
    missed             text,                                 -- the reason of a call that the target could not get
    registration       uuid NOT NULL,                        -- a new one with each registration of the device
    PRIMARY KEY (did, device_id)
);
CREATE INDEX push_targets_challenge ON push_targets (challenge_at) WHERE challenge_at IS NOT NULL;

-- The convos whose members' devices are to be called. A message inserts one row for all members, in
-- its transaction. A worker deletes the row and makes the jobs, in one transaction. A message that
-- is written meanwhile waits for that transaction, and inserts the row again.
CREATE TABLE push_convos (
    convo_id   uuid NOT NULL,
    sender_did text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (convo_id, sender_did)
);
CREATE INDEX push_convos_age ON push_convos (created_at);

-- A job is one call to a device. A device has at most one pending job, which stands for all that
-- happens until the job is sent. A device has at most one sending job: under way, or waiting for
-- the next attempt. A sending job stands for nothing that happens later, because the device has
-- possibly seen the job's key already, and the same key would tell the device nothing new.
--
-- The job of a connected device is deferred, because the connection brings the events. The device
-- is called only if it has possibly missed an event. Package push says when.
CREATE TABLE push_jobs (
    did             text COLLATE "C" NOT NULL,
    id              uuid NOT NULL,
    device_id       text COLLATE "C" NOT NULL,
    state           text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'sending', 'done', 'dead')),
    reason          text NOT NULL CHECK (reason IN ('message', 'welcome')),
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL,                    -- of a sending job: from then on another worker may take it
    last_error      text,
    version         bigint NOT NULL DEFAULT 0,               -- goes up when a worker takes the job
    created_at      timestamptz NOT NULL,
    ended_at        timestamptz,
    heard_by        timestamptz,                             -- a device connected then has got all events of the job; NULL: not deferred
    heard_from      timestamptz,                             -- a time before all events of a deferred job; NULL: not known
    PRIMARY KEY (did, id),
    CHECK ((state IN ('done', 'dead')) = (ended_at IS NOT NULL)),
    CHECK (heard_by IS NULL OR state IN ('pending', 'done'))
);
CREATE UNIQUE INDEX push_jobs_pending ON push_jobs (did, device_id) WHERE state = 'pending';
CREATE UNIQUE INDEX push_jobs_sending ON push_jobs (did, device_id) WHERE state = 'sending';
CREATE INDEX push_jobs_due ON push_jobs (next_attempt_at) WHERE state IN ('pending', 'sending');
CREATE INDEX push_jobs_retention ON push_jobs (ended_at) WHERE state IN ('done', 'dead');

CREATE FUNCTION audit_push_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit('push_job', NEW.id::text, OLD.state, NEW.state, NEW.version);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit AFTER UPDATE OF state ON push_jobs FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_push_job();


-- ==== Consent ====

-- The people whom a person blocks cannot invite the person. Only the person itself can list its
-- blocks. An invitation reads the blocks of the people whom it invites.
CREATE TABLE blocks (
    did         text COLLATE "C" NOT NULL,
    blocked_did text COLLATE "C" NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (did, blocked_did)
);
CREATE INDEX blocks_of_did ON blocks (blocked_did);          -- for the erasure of an account

-- The invitations of the last day between people who shared no convo. They bound how often one
-- inviter, and one address, can invite a person. A row does not count once the person has accepted
-- the convo.
CREATE TABLE invitations (
    did        text COLLATE "C" NOT NULL,                    -- the invited person
    inviter    text COLLATE "C" NOT NULL,
    address    text NOT NULL,                                -- the inviter's, or its /64
    convo_id   uuid NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (did, created_at, inviter, convo_id)
);
CREATE INDEX invitations_of_inviter ON invitations (inviter, created_at, did, convo_id); -- exports and erasures
CREATE INDEX invitations_by_age ON invitations (created_at);

-- Who may invite a person, and whether the person shares its cursors. A person without a row has
-- the defaults.
CREATE TABLE policies (
    did           text COLLATE "C" PRIMARY KEY,
    invitations   text COLLATE "C" NOT NULL DEFAULT 'everyone' CHECK (invitations IN ('everyone', 'shared', 'nobody')),
    share_cursors boolean NOT NULL DEFAULT false             -- with the members of its convos
);


-- ==== Accounts ====

-- What the network says of an account, and what the operator has decided. An account without a row
-- is active, not blocked and not limited.
CREATE TABLE accounts (
    did            text COLLATE "C" PRIMARY KEY,
    status         text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'deactivated', 'suspended', 'takendown', 'deleted')),
    status_source  text,                                     -- the relay that stated it; NULL: none has
    status_seq     bigint,                                   -- the relay's
    status_at      timestamptz,                              -- the relay's time
    blocked_at     timestamptz,                              -- NULL: not blocked by the operator
    blocked_by     text,
    blocked_reason text,
    erase_after    timestamptz,                              -- NULL: the account is not to be erased
    erased_at      timestamptz,                              -- the end of the last erasure
    version        bigint NOT NULL,                          -- of account_clock, when the row last changed
    erasing_at     timestamptz,                              -- NULL: no erasure is running
    limit_percent  integer CHECK (limit_percent BETWEEN 1 AND 1000), -- of the request rate and the daily quotas; NULL: no limit
    limit_until    timestamptz,                              -- NULL: until the operator removes the limit
    limited_at     timestamptz,
    limited_by     text,
    limited_reason text,
    CHECK ((blocked_at IS NULL) = (blocked_by IS NULL)),
    CONSTRAINT accounts_limit CHECK (num_nonnulls(limit_percent, limited_at, limited_by, limited_reason) IN (0, 4))
);
CREATE INDEX accounts_changed ON accounts (version);
CREATE INDEX accounts_refused ON accounts (did) WHERE status <> 'active' OR blocked_at IS NOT NULL;
CREATE INDEX accounts_limited ON accounts (did) WHERE limit_percent IS NOT NULL;
CREATE INDEX accounts_due ON accounts (erase_after) WHERE erase_after IS NOT NULL;

-- A transaction that changes whom nodes refuse or limit first raises the version, as with
-- session_clock.
CREATE TABLE account_clock (
    version   bigint NOT NULL,
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton)
);
INSERT INTO account_clock (version) VALUES (0);

-- How far the events of each relay have been read.
CREATE TABLE relay_cursors (
    source     text PRIMARY KEY,                             -- the relay's kind and address
    cursor     bigint NOT NULL,
    updated_at timestamptz NOT NULL
);


-- ==== Erasure ====

-- Jobs that erase all data of an account. A worker takes a job from step to step. Each batch of a
-- step is one transaction, which also moves this row. So a job continues where the last commit left
-- it.
CREATE TABLE erasures (
    id           uuid PRIMARY KEY,
    did          text COLLATE "C" NOT NULL,                  -- in a finished job, a tombstone
    salt         bytea,                                      -- of the tombstones; NULL: finished
    requested_by text NOT NULL,                              -- operator NAME, account, network, or home
    reason       text NOT NULL,
    state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished')),
    step         text COLLATE "C" NOT NULL DEFAULT '',       -- the name of the present step; '': the first one
    position     text NOT NULL DEFAULT '',                   -- where the step continues
    pass         integer NOT NULL DEFAULT 1,                 -- a search that finds something begins another pass
    counts       jsonb NOT NULL DEFAULT '{}',                -- rows deleted or changed, by table
    remains      jsonb NOT NULL DEFAULT '{}',                -- rows that the last search found, by table
    services     jsonb NOT NULL DEFAULT '{}',                -- other services that were asked, and the outcome
    failures     integer NOT NULL DEFAULT 0,                 -- failed batches
    not_before   timestamptz NOT NULL,                       -- the earliest time of the next batch
    begun_at     timestamptz NOT NULL,
    finished_at  timestamptz,
    moved_at     timestamptz,                                -- the last commit of a batch; NULL: none yet
    CHECK ((state = 'finished') = (finished_at IS NOT NULL)),
    CHECK ((state = 'finished') = (salt IS NULL))
);
CREATE UNIQUE INDEX erasures_running ON erasures (did) WHERE state = 'running';
CREATE INDEX erasures_due ON erasures (not_before) WHERE state = 'running';

-- The tokens with which accounts confirm their own erasure. A token is good for one account,
-- because the hash is over the DID too. The row of a used token names the erasure and no DID, so
-- that a repeated request finds it.
CREATE TABLE erasure_confirmations (
    hash       bytea PRIMARY KEY,                            -- SHA-256 of the DID, a space, and the token
    did        text COLLATE "C",                             -- NULL: the token is used
    erasure    uuid,                                         -- NULL: the token is not used
    expires_at timestamptz NOT NULL,                         -- of an unused token
    CHECK ((did IS NULL) = (erasure IS NOT NULL))
);
CREATE UNIQUE INDEX erasure_confirmations_did ON erasure_confirmations (did) WHERE did IS NOT NULL;
CREATE INDEX erasure_confirmations_expiry ON erasure_confirmations (expires_at);


-- ==== Attachments ====

-- Encrypted files of convos. The ciphertext is in a store outside the database.

CREATE TABLE attachments (
    id            uuid PRIMARY KEY,
    convo_id      uuid NOT NULL,
    sender_did    text COLLATE "C" NOT NULL,                 -- who announced it
    size          bigint NOT NULL CHECK (size > 0),
    sha256        bytea NOT NULL CHECK (octet_length(sha256) = 32),
    part_size     integer NOT NULL CHECK (part_size > 0),
    state         text COLLATE "C" NOT NULL DEFAULT 'uploading'
        CHECK (state IN ('uploading', 'checking', 'complete', 'failed', 'deleted')),
    version       bigint NOT NULL DEFAULT 0,                 -- of the state
    fence         bigint NOT NULL DEFAULT 0,                 -- of the reservation whose holder checks the file
    seq           bigint,                                    -- its place in the log, which decides who may read it; NULL: not complete
    checked_parts integer NOT NULL DEFAULT 0,                -- counted from the first part
    digest        bytea,                                     -- state of the SHA-256 after the checked parts
    failure       text,                                      -- why it has failed
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    touched_at    timestamptz NOT NULL DEFAULT clock_timestamp(), -- the last upload or check of a part
    kept_from     timestamptz,                               -- when its retention began: complete, or named by a message
    CHECK ((state = 'failed') <= (failure IS NOT NULL)),
    CHECK ((state = 'complete') <= (seq IS NOT NULL AND kept_from IS NOT NULL))
);
-- A convo has each content once.
CREATE UNIQUE INDEX attachments_content ON attachments (convo_id, sha256) WHERE state IN ('uploading', 'checking', 'complete');
CREATE INDEX attachments_convo ON attachments (convo_id, id) WHERE state <> 'deleted'; -- for the convo's deletion, and the sweep
CREATE INDEX attachments_sender ON attachments (sender_did, id);
CREATE INDEX attachments_unfinished ON attachments (touched_at) WHERE state IN ('uploading', 'checking', 'failed');
CREATE INDEX attachments_retention ON attachments (kept_from) WHERE state = 'complete';
CREATE INDEX attachments_deleted ON attachments (id) WHERE state = 'deleted';

CREATE FUNCTION audit_attachment() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := OLD.version + 1;
    PERFORM audit('attachment', NEW.id::text, OLD.state, NEW.state, NEW.version);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit BEFORE UPDATE OF state ON attachments FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_attachment();

-- The parts in the store. No object is written twice: a part that is sent again is another object.
CREATE TABLE attachment_parts (
    attachment_id uuid NOT NULL REFERENCES attachments ON DELETE CASCADE,
    part          integer NOT NULL CHECK (part > 0),
    object        text COLLATE "C" NOT NULL UNIQUE,
    sha256        bytea NOT NULL CHECK (octet_length(sha256) = 32),
    PRIMARY KEY (attachment_id, part)
);


-- ==== Transparency ====

-- Each convo's log has a Merkle tree, so that clients can check the server. Its leaves are computed
-- from messages. These tables hold the hashes that are not computed again, and the senders' tags.

-- Hashes of the trees, 256 to a row. Level 0 has the hashes of leaves. Each higher level has the
-- hashes of the rows of the level below. A row is complete, or the last row of its level. Leaves
-- are stored when somebody asks for a head and 256 of them exist, and before the retention deletes
-- their messages.
CREATE TABLE log_tiles (
    convo_id uuid NOT NULL,
    level    smallint NOT NULL CHECK (level >= 0),
    n        bigint NOT NULL CHECK (n >= 0),
    hashes   bytea NOT NULL CHECK (octet_length(hashes) BETWEEN 32 AND 8192 AND octet_length(hashes) % 32 = 0),
    PRIMARY KEY (convo_id, level, n)
);
ALTER TABLE log_tiles ALTER COLUMN hashes SET STORAGE EXTERNAL; -- hashes do not compress

-- What stands for a sender in the leaves of a convo: the tag, a hash of salt and DID. An erasure
-- deletes the salt and puts a tombstone in the place of the DID. So the leaves stay as they are,
-- and nobody can say whose they were.
CREATE TABLE log_senders (
    convo_id uuid NOT NULL,
    did      text COLLATE "C" NOT NULL,
    salt     bytea CHECK (octet_length(salt) = 16),          -- NULL: the account was erased
    tag      bytea NOT NULL CHECK (octet_length(tag) = 32),
    PRIMARY KEY (convo_id, did)
);

-- The keys that sign heads. Active keys sign together, so that a client that knows one key learns
-- the next.
CREATE TABLE log_keys (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seed       bytea CHECK (octet_length(seed) = 32),        -- of Ed25519; NULL: it does not sign
    public     bytea NOT NULL CHECK (octet_length(public) = 32),
    created_at timestamptz NOT NULL,
    withheld   boolean NOT NULL DEFAULT false                -- its seed has leaked: clients that know no key do not get it
);


-- ==== Disputes ====

-- Members report which epoch they have entered, and which commits they could not process.

-- What an account reports of an epoch. Only reports of the newest epochs of a convo are kept.
CREATE TABLE epoch_reports (
    convo_id    uuid NOT NULL,
    epoch       bigint NOT NULL,
    did         text COLLATE "C" NOT NULL,
    hash        bytea NOT NULL CHECK (octet_length(hash) = 32), -- SHA-256 of the epoch_authenticator (RFC 9420 §8.7)
    offered     boolean NOT NULL DEFAULT false,              -- the account's GroupInfo of this epoch has replaced the stored one
    reported_at timestamptz NOT NULL,
    PRIMARY KEY (convo_id, epoch, did)
);
CREATE INDEX epoch_reports_of_did ON epoch_reports (did, convo_id, epoch); -- for exports

-- Epochs of which two accounts have reported different authenticators.
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
    settled_at  timestamptz,                                 -- when the account was in the group again
    PRIMARY KEY (convo_id, epoch, did)
);
CREATE INDEX commit_reports_of_did ON commit_reports (did, convo_id, epoch);

-- A commit that enough members have reported, more than one liar could. An epoch has at most one
-- dispute.
CREATE TABLE disputes (
    convo_id  uuid NOT NULL,
    epoch     bigint NOT NULL,                               -- that the commit created
    committer text COLLATE "C" NOT NULL,
    state     text COLLATE "C" NOT NULL CHECK (state IN ('open', 'ended')),
    voices    integer NOT NULL,                              -- members whose reports could count when the dispute began
    reports   integer NOT NULL,                              -- reports that counted when the dispute began
    began_at  timestamptz NOT NULL,
    ends_at   timestamptz NOT NULL,                          -- at the latest
    ended_at  timestamptz,
    PRIMARY KEY (convo_id, epoch),
    CHECK ((state = 'ended') = (ended_at IS NOT NULL))
);
CREATE INDEX disputes_open ON disputes (ends_at) WHERE state = 'open';
CREATE INDEX disputes_committer ON disputes (committer, convo_id, epoch);

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


-- ==== Reports ====

-- What members report to the operator. Reports are sealed to the operator's key, so the server
-- cannot read them. A sweep deletes rows 180 days after the report. The sealed bytes are stored
-- outside the row, so that a count of rows reads little.
CREATE TABLE abuse_reports (
    id          uuid PRIMARY KEY,                            -- UUIDv7
    convo_id    uuid NOT NULL,                               -- possibly deleted since
    reporter    text COLLATE "C" NOT NULL,
    reason      text COLLATE "C" NOT NULL,                   -- one of a few words
    key_id      text COLLATE "C" NOT NULL,                   -- of the operator's key
    binding     bytea NOT NULL CHECK (octet_length(binding) = 32), -- SHA-256 of convo and reporter, to which sealed is bound
    digest      bytea NOT NULL CHECK (octet_length(digest) = 32),  -- SHA-256 of sealed: the same report is one row
    sealed      bytea NOT NULL CHECK (octet_length(sealed) <= 262144),
    reported_at timestamptz NOT NULL,
    state       text COLLATE "C" NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed')),
    closed_at   timestamptz,
    closed_by   text,                                        -- the operator, as the client names itself
    note        text,                                        -- why it was closed
    size        integer NOT NULL GENERATED ALWAYS AS (octet_length(sealed)) STORED,
    UNIQUE (binding, digest),
    CHECK ((state = 'closed') = (closed_at IS NOT NULL AND closed_by IS NOT NULL AND note IS NOT NULL))
) WITH (toast_tuple_target = 128);
ALTER TABLE abuse_reports ALTER COLUMN sealed SET STORAGE EXTERNAL; -- ciphertext does not compress
CREATE INDEX abuse_reports_state ON abuse_reports (state, id);          -- the queue
CREATE INDEX abuse_reports_open ON abuse_reports (size) WHERE state = 'open'; -- each new report sums up the bytes, under a lock
CREATE INDEX abuse_reports_age ON abuse_reports (reported_at);          -- for the sweep
CREATE INDEX abuse_reports_reporter ON abuse_reports (reporter, id);    -- for the export and the erasure of an account


-- ==== Quotas, usage and requests ====

-- The counts of these tables are of all nodes together.

-- What DIDs, addresses and convos have used of their quotas, by day. For maintenance only.
CREATE TABLE quota_counts (
    day     date NOT NULL,                                   -- in UTC
    subject text COLLATE "C" NOT NULL,                       -- a DID, ip:ADDRESS (IPv6: ip:NETWORK/64) or convo:ID
    quota   text COLLATE "C" NOT NULL,                       -- its name, such as messages-per-day
    n       bigint NOT NULL,                                 -- in the quota's unit: things, or bytes
    PRIMARY KEY (day, subject, quota)
) WITH (fillfactor = 70);                                    -- n changes often: leave space for HOT updates

-- Requests by caller and outcome, by the hour. The callers with the most requests have rows of
-- their own. All others share one. For maintenance only.
CREATE TABLE caller_counts (
    hour       timestamptz NOT NULL,
    kind       text COLLATE "C" NOT NULL,                    -- first, replay, expired, other, or the name of a conflict's error
    caller_did text COLLATE "C" NOT NULL,                    -- '': all callers without a row
    nsid       text COLLATE "C" NOT NULL,
    n          bigint NOT NULL,
    seconds    double precision NOT NULL,                    -- processing time of these requests
    weight     bigint NOT NULL,                              -- n, and the highest weight of the rows given up before this one
    PRIMARY KEY (hour, kind, caller_did, nsid)
);

-- Single requests: those of known callers that were refused or failed, slow ones, and a sample of
-- the others. A worker writes them, so rows can be missing. For maintenance only.
CREATE TABLE requests (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,                         -- of the answer
    request_id text COLLATE "C" NOT NULL,                    -- X-Request-Id; not unique, because clients can choose it
    node       text COLLATE "C" NOT NULL,                    -- the node that answered
    nsid       text COLLATE "C" NOT NULL,
    status     integer NOT NULL,                             -- of HTTP
    error      text COLLATE "C" NOT NULL,                    -- its name; '': none
    message    text NOT NULL,                                -- of the error, as the client got it
    detail     jsonb,                                        -- the other fields of the error
    caller_did text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,                    -- the idempotency key; '': none
    convo_id   uuid,                                         -- that the request names
    replayed   boolean NOT NULL,                             -- the answer repeated the first answer of the key
    expired    boolean NOT NULL,                             -- the key was used again after its record's lifetime
    seconds    double precision NOT NULL                     -- processing time
);
CREATE INDEX requests_request_id ON requests (request_id, id);
CREATE INDEX requests_caller ON requests (caller_did, id);
CREATE INDEX requests_key ON requests (key, id) WHERE key <> '';
CREATE INDEX requests_convo ON requests (convo_id, id) WHERE convo_id IS NOT NULL;


-- ==== Operator ====

-- Facts of the whole database: the random values that it got when it was made, and which mlsd can
-- serve.
CREATE TABLE installation (
    one        boolean PRIMARY KEY DEFAULT true CHECK (one),
    id         uuid NOT NULL DEFAULT gen_random_uuid(),      -- begins the names of its objects in the store of attachments
    min_binary bigint NOT NULL DEFAULT 0,                    -- only an mlsd that knows this migration, or a later one, can serve
    hash_key   bytea NOT NULL CHECK (octet_length(hash_key) = 32) -- the log hashes callers with it: a caller has one hash
        DEFAULT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
);
INSERT INTO installation DEFAULT VALUES;

-- What operators have done through the admin listener. The row is committed before the first
-- effect.
CREATE TABLE admin_actions (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL,
    operator text NOT NULL,                                  -- as the client names itself
    action   text COLLATE "C" NOT NULL,                      -- such as account.block
    subject  text COLLATE "C" NOT NULL,                      -- the parameters: a DID, the id of a convo …
    reason   text NOT NULL,
    outcome  text COLLATE "C" NOT NULL,                      -- started, done, refused: NAME, failed
    ended_at timestamptz                                     -- NULL: it runs, or its node was killed
);


-- ==== State machines and the audit log ====

-- The transitions that exist. Every other transition is refused.
CREATE TABLE transitions (
    entity     text COLLATE "C" NOT NULL,
    from_state text COLLATE "C" NOT NULL,
    to_state   text COLLATE "C" NOT NULL,
    PRIMARY KEY (entity, from_state, to_state)
);
INSERT INTO transitions VALUES
    ('key_package', 'available', 'claimed'),
    ('key_package', 'available', 'consumed'),                -- handed over directly
    ('key_package', 'available', 'expired'),
    ('key_package', 'claimed', 'consumed'),
    ('key_package', 'claimed', 'orphaned'),                  -- the claim lapsed
    ('key_package', 'claimed', 'expired'),                   -- withdrawn
    ('key_package', 'orphaned', 'consumed'),                 -- its claimer has used it after the lapse
    ('key_package', 'orphaned', 'expired'),                  -- withdrawn
    ('welcome', 'available', 'in_flight'),                   -- fetched
    ('welcome', 'available', 'consumed'),                    -- confirmed after its grace
    ('welcome', 'available', 'superseded'),
    ('welcome', 'available', 'expired'),
    ('welcome', 'in_flight', 'available'),                   -- its grace is over
    ('welcome', 'in_flight', 'consumed'),
    ('welcome', 'in_flight', 'superseded'),
    ('welcome', 'in_flight', 'expired'),
    ('reservation', 'processing', 'completed'),
    ('reservation', 'processing', 'released'),
    ('reservation', 'processing', 'processing'),             -- taken over, with a higher fence
    ('reservation', 'released', 'processing'),
    ('reservation', 'completed', 'processing'),              -- used again after its lifetime
    ('reservation', 'completed', 'completed'),
    ('push_job', 'pending', 'sending'),
    ('push_job', 'pending', 'done'),                         -- the device was connected
    ('push_job', 'sending', 'done'),
    ('push_job', 'sending', 'dead'),
    ('sent_invitation', 'pending', 'sending'),
    ('sent_invitation', 'pending', 'dead'),                  -- its home was away for a week
    ('sent_invitation', 'sending', 'done'),
    ('sent_invitation', 'sending', 'dead'),
    ('sent_invitation', 'sending', 'pending'),               -- the invitation has ended meanwhile
    ('sent_invitation', 'done', 'pending'),                  -- the invitation has ended, and its home is to be told
    ('attachment', 'uploading', 'checking'),
    ('attachment', 'uploading', 'deleted'),
    ('attachment', 'checking', 'uploading'),                 -- a part in the store is broken
    ('attachment', 'checking', 'complete'),
    ('attachment', 'checking', 'failed'),                    -- the content is not the announced one
    ('attachment', 'checking', 'deleted'),
    ('attachment', 'complete', 'deleted'),
    ('attachment', 'failed', 'deleted'),
    ('dispute', 'none', 'open'),
    ('dispute', 'open', 'ended');

-- Every change of a state, by whom and why. Rows are only added, and deleted when they are old.
CREATE TABLE audit_log (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    entity     text COLLATE "C" NOT NULL,                    -- convo, or an entity of transitions
    entity_id  text COLLATE "C" NOT NULL,
    actor      text COLLATE "C" NOT NULL,                    -- a DID, or mlsd
    from_state text COLLATE "C" NOT NULL,
    to_state   text COLLATE "C" NOT NULL,
    reason     text COLLATE "C" NOT NULL,                    -- the method, or what a worker was doing
    version    bigint NOT NULL,
    details    text,                                         -- the actor's own words
    PRIMARY KEY (at, id)
);
CREATE INDEX audit_log_entity ON audit_log (entity, entity_id, at);

-- Checks a transition and writes it to the audit log. The triggers audit call it.
CREATE FUNCTION audit(entity text, entity_id text, from_state text, to_state text, version bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM transitions t
        WHERE (t.entity, t.from_state, t.to_state) = (audit.entity, audit.from_state, audit.to_state)) THEN
        RAISE EXCEPTION '% cannot go from % to %', entity, from_state, to_state
            USING ERRCODE = 'MLS01', TABLE = entity, COLUMN = from_state, CONSTRAINT = to_state;
    END IF;
    INSERT INTO audit_log (entity, entity_id, actor, from_state, to_state, reason, version)
    VALUES (entity, entity_id, coalesce(nullif(current_setting('mlsd.caller', true), ''), 'mlsd'), from_state, to_state,
        coalesce(nullif(current_setting('mlsd.reason', true), ''), 'not stated'), version);
END
$$;


-- ==== Row-level security and grants ====

-- A transaction names its caller in mlsd.caller, or sets mlsd.maintenance = on.

ALTER TABLE idempotency_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY own_records ON idempotency_keys
    USING (caller_did = current_setting('mlsd.caller', true) OR current_setting('mlsd.maintenance', true) = 'on');

ALTER TABLE quota_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE quota_counts FORCE ROW LEVEL SECURITY;
CREATE POLICY maintenance ON quota_counts USING (current_setting('mlsd.maintenance', true) = 'on');

ALTER TABLE caller_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE caller_counts FORCE ROW LEVEL SECURITY;
CREATE POLICY maintenance ON caller_counts USING (current_setting('mlsd.maintenance', true) = 'on');

ALTER TABLE requests ENABLE ROW LEVEL SECURITY;
ALTER TABLE requests FORCE ROW LEVEL SECURITY;
CREATE POLICY maintenance ON requests USING (current_setting('mlsd.maintenance', true) = 'on');

-- A superuser bypasses row-level security. So a server takes the role mlsd_app for a caller's
-- transaction, if the role exists. It is made here if the user may make roles.
DO $$
BEGIN
    IF (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user) THEN
        BEGIN
            CREATE ROLE mlsd_app NOLOGIN NOSUPERUSER NOBYPASSRLS;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;                                            -- made for another database of this server
        END;
        EXECUTE format('GRANT mlsd_app TO %I', current_user);
        GRANT USAGE ON SCHEMA public TO mlsd_app;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO mlsd_app;
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO mlsd_app;
        ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO mlsd_app;
        ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE ON SEQUENCES TO mlsd_app;
    END IF;
END
$$;
