-- Drops everything that the up has made. The role mlsd_app stays: other databases of the server can
-- use it.

DROP VIEW single_events, single_outbox;

DROP TABLE installation, admin_actions;
DROP TABLE quota_counts, caller_counts, requests;
DROP TABLE abuse_reports;
DROP TABLE disputes, commit_reports, forked_epochs, epoch_reports;
DROP TABLE log_tiles, log_senders, log_keys;
DROP TABLE attachment_parts, attachments;
DROP TABLE erasures, erasure_confirmations;
DROP TABLE accounts, account_clock, relay_cursors;
DROP TABLE blocks, invitations, policies;
DROP TABLE push_jobs, push_convos, push_targets;
DROP TABLE presence, nodes, subscription_tickets;
DROP TABLE convo_events, convo_events_end, generations, event_days, stream, events, outbox;
DROP TABLE sessions, session_clock, session_keys;
DROP TABLE used_tokens, identity_keys;
DROP TABLE idempotency_keys;
DROP TABLE welcomes, welcome_bodies;
DROP TABLE sent_invitations, received_invitations, invitation_budgets;
DROP TABLE key_packages, key_package_init_keys, key_package_signals;
DROP TABLE messages, log_floors;
DROP TABLE convos, members, public_groups, deleted_convos;
DROP TABLE audit_log, transitions;

DROP FUNCTION audit, audit_convo, audit_key_package, audit_welcome, audit_reservation,
    audit_push_job, audit_sent_invitation, audit_attachment, audit_dispute;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'mlsd_app' AND pg_has_role(oid, 'MEMBER')) THEN
        ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE SELECT, INSERT, UPDATE, DELETE ON TABLES FROM mlsd_app;
        ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE USAGE ON SEQUENCES FROM mlsd_app;
        REVOKE ALL ON ALL TABLES IN SCHEMA public FROM mlsd_app;
        REVOKE USAGE ON SCHEMA public FROM mlsd_app;
    END IF;
END
$$;
