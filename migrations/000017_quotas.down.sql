DROP TABLE quota_counts;
