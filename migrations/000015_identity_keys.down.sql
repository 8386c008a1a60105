DROP TABLE identity_keys;
