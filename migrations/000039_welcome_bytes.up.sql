-- The sweep of the bytes of Welcomes goes through them by age. For each it looks for a Welcome that can still be fetched, and for the last confirmation.
CREATE INDEX welcome_bodies_age ON welcome_bodies (created_at, convo_id, epoch);
CREATE INDEX welcomes_live_of_epoch ON welcomes (convo_id, epoch) WHERE state IN ('available', 'in_flight');
CREATE INDEX welcomes_confirmed ON welcomes (convo_id, epoch, confirmed_at) WHERE confirmed_at IS NOT NULL;
