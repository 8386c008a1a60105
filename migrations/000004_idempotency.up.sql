-- Records with a lifetime, and reservations of work outside the database: taken before it begins, held by a lease, and fenced, so that
-- a holder who was thought dead changes nothing any more.
ALTER TABLE idempotency_keys
    ADD COLUMN state text NOT NULL DEFAULT 'completed' CHECK (state IN ('processing', 'completed', 'released')),
    ADD COLUMN outcome text NOT NULL DEFAULT 'success' CHECK (outcome IN ('', 'success', 'partial', 'failure')),
    ADD COLUMN fence bigint NOT NULL DEFAULT 1,              -- raised by whoever takes the reservation over
    ADD COLUMN started_at timestamptz,                       -- of the present attempt; NULL: a write inside the database
    ADD COLUMN lease_expires_at timestamptz,
    ADD COLUMN completed_at timestamptz,                     -- completed_at - started_at is how long it took
    ADD COLUMN expires_at timestamptz NOT NULL DEFAULT clock_timestamp() + interval '7 days',
    ADD CHECK ((state = 'processing') <= (lease_expires_at IS NOT NULL AND started_at IS NOT NULL));
ALTER TABLE idempotency_keys ALTER COLUMN expires_at DROP DEFAULT;
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_at);
CREATE INDEX idempotency_keys_processing ON idempotency_keys (lease_expires_at) WHERE state = 'processing';

-- The record is in the transaction of its effect, so it is the one guard of a key. The rows keep the key as a trace; a second
-- index on them would refuse a key that is used anew after its record's lifetime.
DROP INDEX convos_idempotency_key;
DROP INDEX key_packages_idempotency_key;
DROP INDEX messages_commit_idempotency_key;

-- Whoever runs a caller's write sees that caller's records and no others. Maintenance says that it is maintenance. The role is for
-- servers whose own account passes by every policy (a superuser's does).
ALTER TABLE idempotency_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY own_records ON idempotency_keys
    USING (caller_did = current_setting('mlsd.caller', true) OR current_setting('mlsd.maintenance', true) = 'on');
DO $$
BEGIN
    IF (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user) THEN
        BEGIN
            CREATE ROLE mlsd_app NOLOGIN NOSUPERUSER NOBYPASSRLS;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;                                            -- another database of this server has it already
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

-- Every change of a state machine, by whom and why. Rows are only added, and dropped when they are old.
CREATE TABLE audit_log (
    id         bigint GENERATED ALWAYS AS IDENTITY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    entity     text COLLATE "C" NOT NULL,                    -- welcome, key_package, convo, reservation …
    entity_id  text COLLATE "C" NOT NULL,
    actor      text COLLATE "C" NOT NULL,                    -- a DID, or mlsd
    from_state text COLLATE "C" NOT NULL,
    to_state   text COLLATE "C" NOT NULL,
    reason     text COLLATE "C" NOT NULL,                    -- the method, or what a worker was doing
    version    bigint NOT NULL,
    PRIMARY KEY (at, id)
);
CREATE INDEX audit_log_entity ON audit_log (entity, entity_id, at);

-- The transitions there are. What is not here is refused, whoever asks for it.
CREATE TABLE transitions (
    entity     text COLLATE "C" NOT NULL,
    from_state text COLLATE "C" NOT NULL,
    to_state   text COLLATE "C" NOT NULL,
    PRIMARY KEY (entity, from_state, to_state)
);
INSERT INTO transitions VALUES
    ('welcome', 'available', 'in_flight'),    -- fetched
    ('welcome', 'available', 'consumed'),     -- confirmed after its grace
    ('welcome', 'available', 'superseded'),
    ('welcome', 'available', 'expired'),
    ('welcome', 'in_flight', 'available'),    -- grace over
    ('welcome', 'in_flight', 'consumed'),
    ('welcome', 'in_flight', 'superseded'),
    ('welcome', 'in_flight', 'expired'),
    ('key_package', 'available', 'claimed'),
    ('key_package', 'available', 'consumed'), -- handed over directly
    ('key_package', 'available', 'expired'),
    ('key_package', 'claimed', 'consumed'),
    ('key_package', 'claimed', 'orphaned'),   -- the claim lapsed
    ('key_package', 'orphaned', 'consumed'),  -- and its holder used it after all
    ('reservation', 'processing', 'completed'),
    ('reservation', 'processing', 'released'),
    ('reservation', 'processing', 'processing'), -- taken over, with a higher fence
    ('reservation', 'released', 'processing'),
    ('reservation', 'completed', 'processing'),  -- used anew after its lifetime
    ('reservation', 'completed', 'completed');

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

CREATE FUNCTION audit_welcome() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit('welcome', NEW.id::text, OLD.state, NEW.state, NEW.version);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit AFTER UPDATE OF state ON welcomes FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_welcome();

ALTER TABLE key_packages ADD COLUMN version bigint NOT NULL DEFAULT 0;
CREATE FUNCTION audit_key_package() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := OLD.version + 1;
    PERFORM audit('key_package', encode(NEW.ref, 'hex'), OLD.state, NEW.state, NEW.version);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit BEFORE UPDATE OF state ON key_packages FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION audit_key_package();

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

-- A write inside the database has no states that anybody else could see: only reservations are audited.
CREATE FUNCTION audit_reservation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM audit('reservation', NEW.nsid || ' ' || NEW.key, OLD.state, NEW.state, NEW.fence);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit AFTER UPDATE OF state ON idempotency_keys FOR EACH ROW
    WHEN (NEW.started_at IS NOT NULL AND (OLD.state, OLD.fence) IS DISTINCT FROM (NEW.state, NEW.fence))
    EXECUTE FUNCTION audit_reservation();
