"""Exercises of week 3: shards, a common first state, accumulation, buckets, MPI."""
