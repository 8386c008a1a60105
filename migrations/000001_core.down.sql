DROP TABLE used_tokens, idempotency_keys, welcomes, welcome_bodies, key_package_init_keys, key_packages, messages, members, convos;
