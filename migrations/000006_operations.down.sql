DROP TABLE conflict_counts;
