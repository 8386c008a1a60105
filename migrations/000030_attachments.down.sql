DROP TABLE attachment_parts, attachments, attachment_store;
DROP FUNCTION audit_attachment;
DELETE FROM transitions WHERE entity = 'attachment';
