"""Exercise oracles: run a student's function on ranks, name the first thing that is wrong.

Each name is imported when it is first used. A rank imports the check that it runs, and this file
on the way: it would wait for the checks of all weeks.
"""

import functools
import importlib

_PLACE = {
    "Verdict": "verdict",
    "global_mean": "week01.mean",
    "bytes_on_the_wire": "week01.bytes",
    "all_to_all": "week01.collectives",
    "tree_broadcast": "week01.collectives",
    "ring_all_reduce": "week01.ring",
    "place_on_roofline": "week01.roofline",
    "count_attention": "week01.attention",
    "sum_uneven": "week01.uneven",
    "name_culprit": "week01.culprit",
    "optimal": "week02.optimal",
    "find_flaw": "week02.flaw",
    "given_fit": "week02.flaw",
    "count_flops": "week02.flops",
    "huber_objective": "week02.objective",
    "broadcast_state": "week03.replicas",
    "shard": "week03.replicas",
    "accumulate": "week03.accumulate",
    "reduce_in_buckets": "week03.buckets",
    "train_by_mpi": "week03.by_mpi",
    "tokens_to_hide": "week03.hiding",
    "column_linear": "week04.linear",
    "row_linear": "week04.linear",
    "vocabulary_cross_entropy": "week04.cross_entropy",
    "sum_partial_gradients": "week04.partial_sums",
    "message_bytes": "week04.messages",
    "activation_bytes": "week04.activations",
    "order_1f1b": "week05.order",
    "bubble_share": "week05.share",
    "pipeline_step": "week05.step",
    "fuse_messages": "week05.fuse",
    "place_axes": "week05.axes",
    "bytes_per_rank": "week06.rank_bytes",
    "shard_flat": "week06.flat",
    "zero_1": "week06.stage_1",
    "bytes_per_step": "week06.step_bytes",
    "choose_wrapping": "week07.wrapping",
    "reshard_rows": "week07.reshard",
    "read_deepspeed": "week07.deepspeed_config",
    "scaled_step": "week08.scaled_step",
    "master_adam": "week08.master_adam",
    "round_stochastically": "week08.stochastic",
    "mixed_bytes": "week08.mixed_bytes",
    "fused_update": "week08.fused_update",
    "cached_attention": "week09.cached_attention",
    "block_allocator": "week09.block_allocator",
    "accept_or_resample": "week09.accept_or_resample",
    "cache_bytes": "week09.cache_bytes",
    "outgrowing_batch": "week09.outgrowing_batch",
    "scan_over_ranks": "week10.scan_over_ranks",
    "combine": "week10.combine",
    "ssm_step": "week10.ssm_step",
    "hybrid_bytes": "week10.hybrid_bytes",
    "project": "submission.project",
}

_NO_EXERCISE = ("Verdict", "given_fit", "project")

__all__ = sorted([*_PLACE, "progress"])


def progress():
    """Draw which exercises of which week are solved."""
    weeks = {}
    for name, place in _PLACE.items():
        if name not in _NO_EXERCISE:
            weeks.setdefault(f"week {int(place[4:6])}", []).append(name)
    return importlib.import_module("helpers.check.solved").Progress.so_far(weeks)


def __getattr__(name):
    if name not in _PLACE:
        raise AttributeError(f"module 'helpers.check' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"helpers.check.{_PLACE[name]}"), name)
    if name not in _NO_EXERCISE:
        value = _noting(name, value)
    globals()[name] = value
    return value


def _noting(name, check):
    """Return the check, which then remembers what was solved."""

    @functools.wraps(check)
    def noted(*args, **kwargs):
        verdict = check(*args, **kwargs)
        importlib.import_module("helpers.check.solved").note(name, verdict)
        return verdict

    return noted


def __dir__():
    return sorted({*globals(), *__all__})
