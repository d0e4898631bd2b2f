"""Data parallel from scratch, in three steps, each with the one reason for the next.

    naive       an all-reduce for every gradient, after the backward
    bucketed    a few large all-reduces, after the backward
    overlapped  the same, started while the backward still runs: `DDP`

Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 13,
section 3.2 takes the same three steps.
"""
