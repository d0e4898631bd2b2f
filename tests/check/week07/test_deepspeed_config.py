"""Reading a DeepSpeed configuration: the solution passes; each mistake gets its own hint."""

import pytest

from helpers import check
from helpers.plans.deepspeed_config import BATCH
from notebooks.solutions import week07
from tests.check.asked import asked, drawn_anew

RIGHT = week07.read_deepspeed
TRAIN, MICRO, STEPS = BATCH


def changed(**changes):
    """The solution, with other values: each a function of the right answer and the arguments."""

    def solve(settings, ranks, params):
        right = RIGHT(settings, ranks, params)
        return right | {name: change(right, settings, ranks) for name, change in changes.items()}

    return solve


def with_settings(change):
    """The solution, for settings that are read wrongly."""
    return lambda settings, ranks, params: RIGHT(change(settings), ranks, params)


def each(right, *_):
    return right["gpu_bytes"]


def one_micro_batch(right, settings, ranks):
    return right["micro_batch"] * ranks


def whole_model(settings, ranks, params):
    return RIGHT(settings, ranks, params) | {"gpu_bytes": 16 * params}


def all_divided(settings, ranks, params):
    return RIGHT(settings, ranks, params) | {"gpu_bytes": 16 * params / ranks}


def nothing_offloaded(settings, ranks, params):
    zero = {"stage": settings.get("zero_optimization", {}).get("stage", 0)}
    right = RIGHT(settings | {"zero_optimization": zero}, ranks, params)
    return RIGHT(settings, ranks, params) | {"gpu_bytes": right["gpu_bytes"]}


def gradients_stay(settings, ranks, params):
    right, zero = RIGHT(settings, ranks, params), settings.get("zero_optimization", {})
    moved = zero.get("offload_optimizer", {}).get("device", "none") != "none"
    return right | {"gpu_bytes": right["gpu_bytes"] + moved * 2 * params / ranks}


def backwards(right, settings, ranks):
    return ["parameters", "gradients", "optimizer"][: len(right["sharded"])]


def batch_of_a_rank(right, settings, ranks):
    return settings.get(TRAIN, right["micro_batch"])


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (changed(batch=one_micro_batch), "count gradient_accumulation_steps"),
        (changed(batch=lambda r, *_: r["micro_batch"] * r["accumulation"]), "count the ranks"),
        (changed(batch=lambda r, *_: r["micro_batch"]), "Each rank has its own sequences"),
        (changed(batch=lambda *_: "many"), "one number of sequences"),
        (changed(batch=lambda r, *_: r["batch"] + 1), "Two of them give the third"),
        (changed(micro_batch=batch_of_a_rank), "counts the sequences of all ranks"),
        (changed(micro_batch=lambda r, s, n: s.get(MICRO, 1)), "does not accum"),
        (changed(accumulation=lambda r, s, n: s.get(STEPS, 1)), "is not named"),
        (changed(sharded=backwards), "the other way round"),
        (changed(sharded=lambda r, *_: r["sharded"][:-1]), "Stage 1 shards the optimizer's"),
        (changed(sharded=lambda *_: "optimizer"), "is a list with some of"),
        (changed(sharded=lambda *_: ["weights"]), "is a list with some of"),
        (changed(sharded=lambda *_: 3), "is a list with some of"),
        (whole_model, "That is the whole model"),
        (all_divided, "Only the sharded kinds"),
        (nothing_offloaded, "wait in RAM or on an SSD"),
        (gradients_stay, "needs both"),
        (changed(gpu_bytes=lambda r, *_: each(r) * 8), "not bits"),
        (changed(gpu_bytes=lambda r, *_: each(r) / 1e9), "1e9"),
        (changed(gpu_bytes=lambda r, *_: each(r) / 2**30), "2**30"),
        (changed(gpu_bytes=lambda r, *_: each(r) * 4 / 16), "AdamW 12"),
        (changed(gpu_bytes=lambda *_: "16 MB"), "one number of bytes"),
        (lambda *_: None, "Return a dict"),
        (lambda *_: {"batch": 1}, "Return a dict"),
    ],
)  # fmt: skip
def test_each_mistake_has_its_hint(mistake, hint):
    verdict = check.read_deepspeed(mistake)
    assert verdict.status == "wrong", verdict
    assert hint in verdict.hint, verdict


def test_offloading_to_none_is_no_offloading():
    def there(settings, ranks, params):
        zero = settings.get("zero_optimization", {})
        changed = {k: {"device": "cpu"} if "offload" in k else v for k, v in zero.items()}
        return RIGHT(settings | {"zero_optimization": changed}, ranks, params)

    verdict = check.read_deepspeed(there)
    assert verdict.status == "wrong"
    assert "without effect" in verdict.finding


def test_an_error_is_shown():
    verdict = check.read_deepspeed(lambda settings, ranks, params: settings["batch"])
    assert "KeyError" in verdict.finding


def test_the_solution_passes():
    assert check.read_deepspeed(RIGHT)


def test_a_ten_thousandth_of_the_bytes_is_a_mistake():
    almost = changed(gpu_bytes=lambda right, *_: right["gpu_bytes"] * (1 + 1e-4))
    assert "a GPU holds" in check.read_deepspeed(almost).finding


def test_a_kind_too_many_is_a_mistake():
    every = ["optimizer", "gradients", "parameters"]
    verdict = check.read_deepspeed(changed(sharded=lambda *_: every))
    assert "you said ['gradients', 'optimizer', 'parameters']" in verdict.finding


def test_grading_draws_other_inputs():
    assert drawn_anew(lambda: asked(check.read_deepspeed, week07.read_deepspeed))
