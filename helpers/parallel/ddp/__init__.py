"""Data parallelism (DDP): gradient all-reduce, bucketing, overlap, unused parameters, no_sync.

From scratch, in three steps. Each step removes one cost of the step before:

    NaiveDDP     an all-reduce for every gradient, after the backward
    BucketedDDP  a few large all-reduces, after the backward (`after_backward`)
    DDP          the same all-reduces, started while the backward still runs (`overlapped`)

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
VLDB 13, section 3.2, describes the same three steps.
"""
