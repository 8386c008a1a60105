DROP TABLE key_package_signals;
DROP INDEX key_packages_claims, key_packages_expiry, key_packages_lapse, key_packages_spent;
-- As the first schema has them: a lapsed claim stays claimed, and an expired KeyPackage is passed over.
UPDATE key_packages SET state = 'claimed' WHERE state = 'orphaned';
UPDATE key_packages SET state = 'available' WHERE state = 'expired';
ALTER TABLE key_packages
    DROP CONSTRAINT key_packages_state_check,
    ADD CONSTRAINT key_packages_state_check CHECK (state IN ('available', 'claimed', 'consumed'));
