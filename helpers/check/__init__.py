"""Exercise oracles: run a student's function on ranks, name the first thing that is wrong.

To add an exercise: weekNN/TOPIC.py has its reference, cases and `slips`: its mistakes, each with
its hint (see `exercise.Exercise`, `number.Number`, `ranks.OnRanks`); name it in _HOME below.

Each name is imported when it is first used. A rank imports the check that it runs, and this file
on the way: it would wait for the checks of all weeks.
"""

import difflib
import functools
import importlib

_HOME = {  # the module: the exercises that it has, in the notebooks' order
    "verdict": "Verdict",
    "week01.collectives": "global_mean tree_broadcast ring_all_reduce all_to_all sum_uneven",
    "week01.counts": "bytes_on_the_wire place_on_roofline count_attention name_culprit",
    "week02.laws": "count_flops huber_objective optimal find_flaw given_fit",
    "week03.shards": "broadcast_state shard tokens_to_hide",
    "week03.gradients": "accumulate reduce_in_buckets",
    "week03.by_mpi": "train_by_mpi",
    "week04.layers": "column_linear row_linear vocabulary_cross_entropy",
    "week04.block": "sum_partial_gradients message_bytes activation_bytes",
    "week05.schedules": "order_1f1b bubble_share fuse_messages",
    "week05.step": "pipeline_step",
    "week05.axes": "place_axes",
    "week06.amounts": "bytes_per_rank bytes_per_step",
    "week06.shards": "shard_flat zero_1",
    "week07.wrapping": "choose_wrapping",
    "week07.files": "reshard_rows read_deepspeed",
    "week08.precision": "scaled_step master_adam round_stochastically mixed_bytes",
    "week08.fused": "fused_update",
    "week09.cache": "cached_attention cache_bytes outgrowing_batch",
    "week09.serving": "block_allocator accept_or_resample",
    "week10": "combine ssm_step scan_over_ranks hybrid_bytes",
    "week11": "least_link_bytes needed_bandwidth delayed_step",
    "week11b": "quantise_blocks second_shard break_even_bandwidth outer_round",
    "week12": "merge_blocks zigzag_seen key_gradients",
    "week12b": "mix_over_ranks gates_with_room route_with_bias bytes_across_nodes",
    "week13": "alpha_beta pipeline_seconds",
    "week13b": "cheapest_chain pipeline_plan better_plan",
    "week14": "best_interval days_of_training commit",
    "week14b": "dollars_of_training spot_policy",
    "submission.project": "project",
}
_PLACE = {name: place for place, names in _HOME.items() for name in names.split()}
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
        near = ", ".join(difflib.get_close_matches(name, _PLACE)) or "dir(check) lists all"
        raise AttributeError(f"there is no check {name!r}; the nearest: {near}")
    value = getattr(importlib.import_module(f"helpers.check.{_PLACE[name]}"), name)
    if name not in _NO_EXERCISE:
        # Not at the top: `grade` leaves the folder that it is started in only after this file.
        from dataclasses import replace

        value = _noting(name, replace(value, name=name))
    globals()[name] = value
    return value


def _noting(name, check):
    """Return the check, which then remembers what was solved."""

    @functools.wraps(check, updated=())
    def noted(*args, **kwargs):
        if args and not callable(args[0]):
            got = f"check.{name} takes your function, not {args[0]!r}"
            raise TypeError(f"{got}: check.{name}({name})")
        verdict = check(*args, **kwargs)
        importlib.import_module("helpers.check.solved").note(name, verdict)
        return verdict

    noted.__name__ = name
    return noted


def __dir__():
    return sorted({*globals(), *__all__})
