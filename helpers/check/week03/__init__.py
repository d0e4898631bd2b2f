"""Data parallel: shards, one state to begin from, accumulation, buckets."""
