DROP INDEX key_packages_strangers;
