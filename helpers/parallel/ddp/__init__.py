"""Data parallelism (DDP): gradient all-reduce, bucketing, overlap, unused parameters, no_sync.

From scratch, in three steps. Each step removes one cost of the step before:

    naive       an all-reduce for every gradient, after the backward
    bucketed    a few large all-reduces, after the backward
    overlapped  the same all-reduces, started while the backward still runs: `DDP`

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
VLDB 13, section 3.2, describes the same three steps.
"""
