DROP TABLE relay_cursors;
DROP TABLE account_clock;
DROP TABLE accounts;
