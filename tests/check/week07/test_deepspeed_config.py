"""Reading a DeepSpeed configuration: the solution passes; each mistake gets its own hint."""

import random

import pytest

from helpers import check
from helpers.check.hidden import drawn_from
from helpers.check.oracle import NotRight
from helpers.check.week07 import deepspeed_config as exercise
from helpers.plans.deepspeed_config import BATCH
from notebooks.solutions import week07
from tests.check.alone import found_alone
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
        (changed(ranks=lambda *_: 1), "Return a dict"),
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


WHERES = [
    "no ZeRO, fp16", "accumulation", "only the whole batch is named", "whole batch and micro-batch",
    "stage 3", "the optimizer on the CPU", "parameters on an SSD", "a section without effect",
    "everything",
]  # fmt: skip


def test_wrong_bytes_in_one_case_alone_are_found():
    """To nine digits: rounding is right."""

    def off(by):
        return changed(gpu_bytes=lambda right, *_: each(right) * (1 + by) + (not each(right)) * by)

    found = found_alone(check.read_deepspeed, off(1e-10), off(3e-9))
    assert [one.split(": ")[0] for one in found] == WHERES
    assert [one.split("; a GPU holds ")[1] for one in found] == [
        "16,000,000", "5,500,000", "5,500,000", "3,750,000", "1,000,000", "2,000,000", "1,750,000",
        "5,500,000", "0",
    ]  # fmt: skip


def test_a_wrong_size_in_one_case_alone_is_found():
    rights = {
        "batch": (32, 160, 96, 96, 32, 8, 8, 8, 512),
        "micro_batch": (4, 4, 12, 3, 2, 1, 1, 1, 2),
        "accumulation": (1, 5, 1, 4, 1, 1, 1, 1, 4),
    }
    for name, sizes in rights.items():
        wrong = changed(**{name: lambda right, *_, name=name: right[name] + 1})
        found = found_alone(check.read_deepspeed, RIGHT, wrong)
        ranks = (8, 8, 8, 8, 16, 8, 8, 8, 64)
        assert [one.split(" ranks: ")[1] for one in found] == [
            f"you said {name} = {size + 1}; it is {size}" for size in sizes
        ]
        assert [int(one.split(" ranks: ")[0].split()[-1]) for one in found] == list(ranks)


def test_a_wrong_list_in_one_case_alone_is_found():
    order = ["optimizer", "gradients", "parameters"]

    def one_more_or_less(right, *_):
        return order[: (len(right["sharded"]) + 1) % 4]

    found = found_alone(check.read_deepspeed, RIGHT, changed(sharded=one_more_or_less))
    stages = (0, 1, 1, 2, 3, 2, 3, 1, 3)
    assert [one.split(": ")[1:] for one in found] == [
        [f"stage {s}", f"you said {sorted(order[: (s + 1) % 4])}; sharded are {order[:s]}"]
        for s in stages
    ]


def right_of(settings, ranks):
    return exercise.read(settings, ranks)


@pytest.mark.parametrize(
    ("name", "said", "settings", "hint"),
    [
        ("batch", "12", {MICRO: 3, STEPS: 5}, "one number of sequences"),
        ("batch", True, {MICRO: 3, STEPS: 5}, "one number of sequences"),
        ("batch", 12, {MICRO: 3, STEPS: 5}, "One update has several forwards"),
        ("batch", 15, {MICRO: 3, STEPS: 5}, "Each rank has its own sequences"),
        ("batch", 3, {MICRO: 3, STEPS: 5}, "one forward of one rank"),
        ("batch", 61, {MICRO: 3, STEPS: 5}, "Two of them give the third"),
        ("micro_batch", 60, {TRAIN: 60, STEPS: 5}, "train_batch_size counts"),
        ("accumulation", 1, {TRAIN: 60, MICRO: 3}, "The accumulation is not named"),
        ("micro_batch", 3, {TRAIN: 60}, "does not accumulate"),
        ("micro_batch", 12, {TRAIN: 60, STEPS: 5}, "Two of them give the third"),
        ("accumulation", 12, {MICRO: 3, STEPS: 5}, "Two of them give the third"),
    ],
)
def test_the_hint_for_a_size_on_4_ranks(name, said, settings, hint):
    assert hint in exercise.hint_size(name, said, right_of(settings, 4), settings)


def refused(judge, *given):
    with pytest.raises(NotRight) as wrong:
        judge(*given)
    return wrong.value


@pytest.mark.parametrize(
    ("stage", "said", "turned"),
    [
        (1, ["parameters"], True),
        (2, ["parameters", "gradients"], True),
        (1, ["gradients"], False),
        (1, [], False),
        (2, ["optimizer"], False),
        (2, ["parameters", "optimizer"], False),
        (3, ["parameters", "gradients"], False),
        (0, ["parameters"], False),
    ],
)
def test_the_hint_for_a_list(stage, said, turned):
    right = right_of({MICRO: 1} | exercise.zero(stage), 4)
    wrong = refused(exercise.judge_sharded, said, right)
    assert wrong.hint.startswith("The order is the other way round. ") == turned
    exercise.judge_sharded(iter(right.sharded[::-1]), right)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (None, "one number of bytes"),
        (2000 + 2000 / 4 + 12_000 / 4, "wait in RAM"),
        (16_000, "the whole model"),
        (16_000 / 4, "Only the sharded kinds"),
        (2000 + 2000 / 4, "the update runs on the CPU"),
        (2000 / 1e9, "divide by 1e9"),
        (2000 / 2**30, "divide by 2**30"),
        (2001, "AdamW 12"),
        (2000 * (1 + 3e-9), "AdamW 12"),
    ],
)
def test_the_hint_for_the_bytes_of_1000_parameters_on_4_ranks(answer, hint):
    """Stage 2 with the optimizer on the CPU: parameters alone are on the GPU."""
    settings = {MICRO: 1} | exercise.BF16 | exercise.zero(2, offload_optimizer=exercise.HOST)
    right = right_of(settings, 4)
    exercise.judge_bytes(2000 * (1 + 1e-10), right, 1000)
    assert hint in refused(exercise.judge_bytes, answer, right, 1000).hint


def test_grading_draws_ranks_and_models():
    cases = [exercise.drawn(random.Random(secret)) for secret in range(90)]
    assert {ranks for _, _, ranks, _ in cases} == {2, 4, 8, 16, 32}
    assert {where for where, *_ in cases} == set(WHERES)
    known = {where: params for where, _, _, params in exercise.CASES}
    assert all(1 <= params - known[where] <= 9999 for where, _, _, params in cases)
    with drawn_from(2):
        wrong = changed(batch=lambda right, *_: right["batch"] + 1)
        assert len(found_alone(check.read_deepspeed, RIGHT, wrong)) == 9 + 6
