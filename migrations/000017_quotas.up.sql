-- What DIDs, addresses and convos have used of their quotas, by day. The counts of all nodes, added up.
CREATE TABLE quota_counts (
    day     date NOT NULL,                                   -- of UTC
    subject text COLLATE "C" NOT NULL,                       -- a DID, ip:ADDRESS (IPv6: ip:NETWORK/64) or convo:ID
    quota   text COLLATE "C" NOT NULL,                       -- its name, such as messages-per-day
    n       bigint NOT NULL,                                 -- of the quota's unit: things, or bytes
    PRIMARY KEY (day, subject, quota)
) WITH (fillfactor = 70);                                    -- n changes again and again: leave room for HOT updates
-- Only maintenance reads and writes it.
ALTER TABLE quota_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE quota_counts FORCE ROW LEVEL SECURITY;
CREATE POLICY maintenance ON quota_counts USING (current_setting('mlsd.maintenance', true) = 'on');
