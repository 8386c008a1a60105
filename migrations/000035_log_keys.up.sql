-- A key that signs heads of logs and whose seed has leaked: clients that know no key yet are not given it. It can go on signing, so that clients that
-- know only this one learn the next. A node of an earlier version gives it to everybody.
ALTER TABLE log_keys
    ADD COLUMN withheld boolean NOT NULL DEFAULT false;
