-- Refused requests, by the hour: they leave no row of their own. The counts of all nodes, added up.
CREATE TABLE conflict_counts (
    hour timestamptz NOT NULL,
    kind text COLLATE "C" NOT NULL,                          -- the error's name
    nsid text COLLATE "C" NOT NULL,
    n    bigint NOT NULL,
    PRIMARY KEY (hour, kind, nsid)
);
