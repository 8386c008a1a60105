DROP INDEX attachments_convo;
