DROP TABLE presence;
DROP TABLE nodes;
DROP TABLE subscription_tickets;
DROP TABLE event_days;
DROP TABLE stream;
DROP TABLE events;
DROP TABLE outbox;
