-- The claims of strangers on a device, which have a budget together: each claim counts them. Claims of others are many more.
CREATE INDEX key_packages_strangers ON key_packages (did, device_id, claimed_at) WHERE claimed_by_stranger;
