-- $1 how long an account is kept, $2 how long a mark is kept, $3 the most rows of each kind, $4 how
-- many rows may stay.
DELETE FROM identity_keys WHERE ctid IN (
    (SELECT ctid FROM identity_keys
     WHERE fetched_at < clock_timestamp() - $1::interval
     LIMIT $3)
    UNION ALL
    (SELECT ctid FROM identity_keys
     WHERE forgotten_at < clock_timestamp() - $2::interval AND verified_at IS NULL
     LIMIT $3)
    UNION ALL
    (SELECT ctid FROM identity_keys
     ORDER BY fetched_at DESC OFFSET $4 LIMIT $3))
