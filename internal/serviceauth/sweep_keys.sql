-- $1 the most rows of each kind, $2 how long an account is kept, $3 how long a mark is kept, $4 how
-- many rows may stay.
DELETE FROM identity_keys WHERE ctid IN (
    (SELECT ctid FROM identity_keys
     WHERE fetched_at < clock_timestamp() - $2::interval
     LIMIT $1)
    UNION ALL
    (SELECT ctid FROM identity_keys
     WHERE forgotten_at < clock_timestamp() - $3::interval AND verified_at IS NULL
     LIMIT $1)
    UNION ALL
    (SELECT ctid FROM identity_keys
     ORDER BY fetched_at DESC OFFSET $4 LIMIT $1))
