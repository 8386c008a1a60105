-- The KeyPackage ledger: what becomes of a KeyPackage that nobody used, and what its owner is to be told.

ALTER TABLE key_packages
    DROP CONSTRAINT key_packages_state_check,
    ADD CONSTRAINT key_packages_state_check CHECK (state IN ('available', 'claimed', 'consumed', 'expired', 'orphaned'));

CREATE INDEX key_packages_claims ON key_packages (did, claimed_by, device_id, claimed_at) WHERE claimed_by IS NOT NULL;
-- What the reaper looks for: the moment from which a row is due, in each state that it ends. Of what is available nothing is
-- claimed, but only the reaper says so: a claim must not find its KeyPackages by an index that holds everybody's.
CREATE INDEX key_packages_expiry ON key_packages (not_after) WHERE state = 'available' AND claimed_by IS NULL;
CREATE INDEX key_packages_lapse ON key_packages (claim_expires_at) WHERE state = 'claimed';
CREATE INDEX key_packages_spent ON key_packages (coalesce(consumed_at, claim_expires_at, not_after))
    WHERE state IN ('consumed', 'expired', 'orphaned');

-- One row per stock (the KeyPackages of a device and cipher suite) and thing that its owner should know, while it is so.
CREATE TABLE key_package_signals (
    did          text COLLATE "C" NOT NULL,
    device_id    text COLLATE "C" NOT NULL,
    cipher_suite integer NOT NULL,
    kind         text COLLATE "C" NOT NULL CHECK (kind IN ('low', 'last_resort', 'orphaned')),
    count        integer NOT NULL,                       -- orphaned: the claims that have lapsed; else what was available when it was raised
    raised_at    timestamptz NOT NULL,
    PRIMARY KEY (did, device_id, cipher_suite, kind)
);
CREATE INDEX key_package_signals_retention ON key_package_signals (raised_at);
