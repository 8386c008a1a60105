DROP TABLE request_hash_key;
DROP TABLE requests;
