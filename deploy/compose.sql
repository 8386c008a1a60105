-- The role and the database of mlsd, as docs/operating/POSTGRESQL.md makes them. The image of
-- PostgreSQL runs this once, as its superuser, when the volume is empty.
\set password `cat /run/secrets/database-password`
CREATE ROLE mlsd LOGIN PASSWORD :'password' CONNECTION LIMIT 90;
CREATE DATABASE mlsd OWNER mlsd TEMPLATE template0 ENCODING 'UTF8';
REVOKE CONNECT, TEMPORARY ON DATABASE mlsd FROM PUBLIC;
