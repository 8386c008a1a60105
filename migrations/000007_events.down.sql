DELETE FROM transitions WHERE (entity, from_state, to_state) = ('push_job', 'pending', 'done');
ALTER TABLE push_jobs DROP COLUMN heard_by;
DROP TABLE presence;
DROP TABLE nodes;
DROP TABLE subscription_tickets;
DROP TABLE event_days;
DROP TABLE stream;
DROP TABLE events;
DROP TABLE outbox;
