-- The attachments of a convo: its deletion looks for them, and the sweeper goes through them page by page.
CREATE INDEX attachments_convo ON attachments (convo_id, id) WHERE state <> 'deleted';
