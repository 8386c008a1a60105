-- A message uses up its token in its own transaction, which then takes one round trip to the database where it took two; and what is
-- remembered of a token is half of its hash, of 16 bytes, where it was the issuer's DID and a hash of 32.

-- Unlogged, as before. The tokens in use are forgotten here, as a crash of the database forgets them: each could be used once more until
-- it expires.
DROP TABLE used_tokens;
CREATE UNLOGGED TABLE used_tokens (
    token      uuid PRIMARY KEY,                             -- of the SHA-256 of iss, lxm and jti
    expires_at timestamptz NOT NULL
);
CREATE INDEX used_tokens_expiry ON used_tokens (expires_at);
ALTER TABLE used_tokens SET (autovacuum_vacuum_scale_factor = 0.05);

-- As in 000008, and its token (NULL: none is used up). With a token that was used before, or expired so long ago that its row may be gone,
-- the message is not even looked at. The token comes after the convo's lock: whoever waits for a token waits for nobody who waits for a convo.
DROP FUNCTION append_message;
CREATE FUNCTION append_message(convo uuid, group_id bytea, sender text, key text, hash bytea, kind smallint, epoch bigint, body bytea,
    embed_type text, embed_uri text, epoch_window bigint, wait boolean, token uuid, token_expires timestamptz,
    OUT status text, OUT seq bigint, OUT at timestamptz, OUT current_epoch bigint, OUT differing text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    its_group bytea;                                         -- NULL: the convo is not locked
    held record;
    since timestamptz;                                       -- when the sender left
BEGIN
    IF wait THEN
        SELECT c.group_id, c.epoch, c.last_seq + 1 INTO its_group, current_epoch, seq FROM convos c
        WHERE c.id = convo AND EXISTS (SELECT FROM members m WHERE m.convo_id = convo AND m.did = sender AND m.left_at IS NULL)
        FOR NO KEY UPDATE;
    ELSE
        SELECT c.group_id, c.epoch, c.last_seq + 1 INTO its_group, current_epoch, seq FROM convos c
        WHERE c.id = convo AND EXISTS (SELECT FROM members m WHERE m.convo_id = convo AND m.did = sender AND m.left_at IS NULL)
        FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    at := date_trunc('milliseconds', clock_timestamp());
    IF NOT wait THEN
        PERFORM set_config('lock_timeout', '250', true);     -- for the token, and for the fan-out, which may hold its row
    END IF;
    IF token IS NOT NULL THEN
        INSERT INTO used_tokens (token, expires_at)
        SELECT token, token_expires WHERE token_expires > clock_timestamp() - interval '30 seconds'
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            status := 'token-used';
            RETURN;
        END IF;
    END IF;
    SELECT h.seq, h.created_at, h.request_hash, h.body, h.embed_type, h.embed_uri, h.epoch INTO held FROM messages h
    WHERE h.convo_id = convo AND h.sender_did = sender AND h.idempotency_key = key AND h.kind <> 3;
    IF FOUND THEN
        seq := held.seq;
        at := held.created_at;
        IF held.request_hash = hash THEN
            status := 'repeated';
            RETURN;
        END IF;
        status := 'conflict';
        differing := array_remove(ARRAY[
            CASE WHEN held.body <> body THEN 'ciphertext' END,
            CASE WHEN held.embed_type IS DISTINCT FROM embed_type THEN 'embedType' END,
            CASE WHEN held.embed_uri IS DISTINCT FROM embed_uri THEN 'embedUri' END,
            CASE WHEN held.epoch <> epoch THEN 'epoch' END], NULL);
        RETURN;
    END IF;
    SELECT m.left_at INTO since FROM members m WHERE m.convo_id = convo AND m.did = sender;
    status := CASE
        WHEN NOT FOUND THEN 'convo-not-found'
        WHEN since IS NOT NULL THEN 'not-member'
        WHEN its_group IS NULL THEN 'busy'
        WHEN its_group <> group_id THEN 'wrong-group'
        WHEN epoch > current_epoch OR epoch < current_epoch - epoch_window THEN 'wrong-epoch'
        ELSE 'appended'
    END;
    IF status <> 'appended' THEN
        RETURN;
    END IF;
    INSERT INTO messages (convo_id, seq, kind, sender_did, epoch, body, idempotency_key, request_hash, embed_type, embed_uri, created_at)
    VALUES (convo, seq, kind, sender, epoch, body, key, hash, embed_type, embed_uri, at);
    UPDATE convos c SET last_seq = seq, last_message_at = at WHERE c.id = convo;
    INSERT INTO outbox (kind, convo_id, seq, size, created_at) VALUES (kind, convo, seq, octet_length(body), at);
    IF kind = 1 AND EXISTS (SELECT FROM push_targets) THEN
        INSERT INTO push_convos (convo_id, sender_did, created_at) VALUES (convo, sender, now())
        ON CONFLICT (convo_id, sender_did) DO UPDATE SET sender_did = excluded.sender_did WHERE false;
    END IF;
END
$$;
