-- The tables of the delivery service. Every unique key holds the column its table would be distributed by: convo_id, or the
-- DID that owns the row. Text keys collate "C": they are identifiers, compared byte by byte.

CREATE TABLE convos (
    id               uuid PRIMARY KEY,
    group_id         bytea NOT NULL UNIQUE,                  -- MLS group_id, RFC 9420 §8.1
    creator_did      text COLLATE "C" NOT NULL,
    cipher_suite     integer NOT NULL,                       -- RFC 9420 §17.1
    epoch            bigint NOT NULL CHECK (epoch BETWEEN 0 AND 9007199254740991),  -- written by convos only
    last_seq         bigint NOT NULL DEFAULT 0,              -- written by messages only, under this row's lock
    last_message_at  timestamptz,
    name             text,
    description      text,
    group_info       bytea,
    group_info_epoch bigint,
    idempotency_key  text COLLATE "C",
    request_hash     bytea,
    created_at       timestamptz NOT NULL
) WITH (fillfactor = 70);                                    -- last_seq changes with every message: leave room for HOT updates
CREATE UNIQUE INDEX convos_idempotency_key ON convos (creator_did, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE members (
    convo_id   uuid NOT NULL,
    did        text COLLATE "C" NOT NULL,
    role       text NOT NULL CHECK (role IN ('creator', 'member')),
    joined_at  timestamptz NOT NULL,
    joined_seq bigint NOT NULL,                              -- seq of the commit that added it: reads start here
    left_at    timestamptz,
    left_seq   bigint,
    left_epoch bigint,                                       -- what leaveConvo answers again and again
    cursor_seq bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (convo_id, did)
) WITH (fillfactor = 80);
CREATE INDEX members_convos_of_did ON members (did, convo_id) WHERE left_at IS NULL;

CREATE TABLE messages (
    convo_id        uuid NOT NULL,
    seq             bigint NOT NULL CHECK (seq > 0),
    kind            smallint NOT NULL CHECK (kind IN (1, 2, 3)),  -- MLS content type: application, proposal, commit (RFC 9420 §6)
    sender_did      text COLLATE "C" NOT NULL,
    epoch           bigint NOT NULL,                         -- of a commit: the epoch it creates
    body            bytea NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    request_hash    bytea NOT NULL,
    embed_type      text,
    embed_uri       text,
    created_at      timestamptz NOT NULL,                    -- whole milliseconds: part of the message id
    PRIMARY KEY (convo_id, seq)
);
ALTER TABLE messages ALTER COLUMN body SET STORAGE EXTERNAL; -- ciphertext does not compress
-- Commits come from several methods, so their keys have a room of their own and the method's name in front.
CREATE UNIQUE INDEX messages_idempotency_key ON messages (convo_id, sender_did, idempotency_key) WHERE kind <> 3;
CREATE UNIQUE INDEX messages_commit_idempotency_key ON messages (convo_id, sender_did, idempotency_key) WHERE kind = 3;
CREATE UNIQUE INDEX messages_one_commit_per_epoch ON messages (convo_id, epoch) WHERE kind = 3;

CREATE TABLE key_packages (
    did              text COLLATE "C" NOT NULL,
    ref              bytea NOT NULL,                         -- KeyPackageRef, RFC 9420 §5.2
    device_id        text COLLATE "C" NOT NULL,
    cipher_suite     integer NOT NULL,
    body             bytea NOT NULL,
    not_after        timestamptz NOT NULL,
    last_resort      boolean NOT NULL,
    state            text NOT NULL DEFAULT 'available' CHECK (state IN ('available', 'claimed', 'consumed')),
    claimed_by       text COLLATE "C",
    claim_convo_id   uuid,
    claimed_at       timestamptz,
    claim_expires_at timestamptz,
    consumed_at      timestamptz,
    idempotency_key  text COLLATE "C",
    request_hash     bytea,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (did, ref)
);
CREATE UNIQUE INDEX key_packages_idempotency_key ON key_packages (did, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX key_packages_available ON key_packages (did, device_id, cipher_suite, last_resort, created_at) WHERE state = 'available';

-- Tombstones: an init_key is used once, whatever becomes of its KeyPackage (RFC 9420 §10).
CREATE TABLE key_package_init_keys (
    did      text COLLATE "C" NOT NULL,
    init_key bytea NOT NULL,
    ref      bytea NOT NULL,
    PRIMARY KEY (did, init_key)
);

-- One Welcome object serves every device it names: its bytes are stored once, per epoch it leads into.
CREATE TABLE welcome_bodies (
    convo_id   uuid NOT NULL,
    epoch      bigint NOT NULL,
    body       bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (convo_id, epoch)
);
ALTER TABLE welcome_bodies ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE welcomes (
    convo_id         uuid NOT NULL,
    id               uuid NOT NULL,
    recipient_did    text COLLATE "C" NOT NULL,
    device_id        text COLLATE "C" NOT NULL,
    key_package_ref  bytea NOT NULL,
    epoch            bigint NOT NULL,
    state            text NOT NULL DEFAULT 'available' CHECK (state IN ('available', 'in_flight', 'consumed', 'superseded', 'expired')),
    attempts         integer NOT NULL DEFAULT 0,
    fetched_at       timestamptz,
    grace_expires_at timestamptz,
    confirmed_at     timestamptz,
    last_error       text,                                   -- of the delivery under way; cleared by the next lease
    version          bigint NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (convo_id, id),
    CHECK ((state = 'in_flight') <= (grace_expires_at IS NOT NULL)),
    CHECK ((state = 'consumed') = (confirmed_at IS NOT NULL))
);
CREATE UNIQUE INDEX welcomes_live ON welcomes (convo_id, recipient_did, device_id) WHERE state IN ('available', 'in_flight');
CREATE INDEX welcomes_of_recipient ON welcomes (convo_id, recipient_did, epoch DESC);
CREATE INDEX welcomes_grace ON welcomes (grace_expires_at) WHERE state = 'in_flight';
CREATE INDEX welcomes_retention ON welcomes (created_at) WHERE state IN ('available', 'in_flight');

-- The record of a class T write, in the transaction of its effect. Only 2xx answers are kept.
CREATE TABLE idempotency_keys (
    caller_did   text COLLATE "C" NOT NULL,
    nsid         text COLLATE "C" NOT NULL,
    scope        text COLLATE "C" NOT NULL,                  -- the convo the method names, or ''
    key          text COLLATE "C" NOT NULL,
    request_hash bytea NOT NULL,
    field_hashes jsonb NOT NULL,
    response     bytea NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (caller_did, nsid, scope, key)
);

-- jti values of service-auth tokens already spent on a procedure. Unlogged: it costs no flush, and what a database crash
-- forgets lives at most as long as a token; the idempotency keys stand behind it.
CREATE UNLOGGED TABLE used_tokens (
    iss        text COLLATE "C" NOT NULL,
    jti_hash   bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (iss, jti_hash)
);
CREATE INDEX used_tokens_expiry ON used_tokens (expires_at);
