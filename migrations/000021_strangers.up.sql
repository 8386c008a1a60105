-- Whether a claim was one of a stranger's: strangers together have a budget of each device. NULL: not
-- claimed, or by a server of an earlier version, whose claims do not count.
ALTER TABLE key_packages ADD COLUMN claimed_by_stranger boolean;
