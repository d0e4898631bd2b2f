"""Exercise oracles: run a student's function on ranks, name the first thing that is wrong."""

from helpers.check.verdict import Verdict
from helpers.check.week01 import global_mean
from helpers.check.week01_bytes import bytes_on_the_wire
from helpers.check.week01_collectives import all_to_all, tree_broadcast
from helpers.check.week01_ring import ring_all_reduce
from helpers.check.week02 import optimal
from helpers.check.week02_flaw import find_flaw, given_fit
from helpers.check.week02_flops import count_flops
from helpers.check.week02_objective import huber_objective
from helpers.check.week03 import broadcast_state, shard
from helpers.check.week03_accumulate import accumulate
from helpers.check.week03_buckets import reduce_in_buckets

__all__ = [
    "Verdict",
    "accumulate",
    "all_to_all",
    "broadcast_state",
    "bytes_on_the_wire",
    "count_flops",
    "find_flaw",
    "given_fit",
    "global_mean",
    "huber_objective",
    "optimal",
    "reduce_in_buckets",
    "ring_all_reduce",
    "shard",
    "tree_broadcast",
]
