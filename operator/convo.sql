-- Reads the convo $1 and its sizes in bytes, without any content.
SELECT c.cipher_suite, c.epoch, c.commit_level, c.last_seq, c.created_at, c.last_message_at, c.closed_at, log.n, log.bytes, w.bytes, g.bytes
FROM convos c, (
    SELECT count(*) AS n, coalesce(sum(octet_length(body)), 0)::bigint AS bytes FROM messages WHERE convo_id = $1
) log, (
    SELECT coalesce(sum(octet_length(body)), 0)::bigint AS bytes FROM welcome_bodies WHERE convo_id = $1
) w, (
    SELECT coalesce(sum(octet_length(state) + coalesce(octet_length(group_info), 0)), 0)::bigint AS bytes FROM public_groups WHERE convo_id = $1
) g
WHERE c.id = $1
