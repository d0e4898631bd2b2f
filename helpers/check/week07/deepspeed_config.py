"""Exercise of week 7: read a DeepSpeed configuration before you run it."""

import math

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.plans.deepspeed_config import BATCH, KINDS, read

TRAIN, MICRO, STEPS = BATCH
BF16, FP16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}
HOST, SSD, NONE = {"device": "cpu"}, {"device": "nvme"}, {"device": "none"}
BOTH = {"offload_optimizer": HOST, "offload_param": HOST}


def zero(stage, **fields) -> dict:
    return {"zero_optimization": {"stage": stage, **fields}}


MILLION = 1_000_000
# Words, then settings, ranks, parameters. The first cases have one difficulty each.
CASES = (
    ("no ZeRO, fp16", {MICRO: 4} | FP16, 8, MILLION),
    ("accumulation", {MICRO: 4, STEPS: 5} | BF16 | zero(1), 8, MILLION),
    ("only the whole batch is named", {TRAIN: 96} | BF16 | zero(1), 8, MILLION),
    ("whole batch and micro-batch", {TRAIN: 96, MICRO: 3} | BF16 | zero(2), 8, MILLION),
    ("stage 3", {MICRO: 2} | BF16 | zero(3), 16, MILLION),
    ("the optimizer on the CPU", {MICRO: 1} | BF16 | zero(2, offload_optimizer=HOST), 8, MILLION),
    ("parameters on an SSD", {MICRO: 1} | BF16 | zero(3, offload_param=SSD), 8, MILLION),
    (
        "a section without effect",
        {MICRO: 1} | BF16 | zero(1, offload_optimizer=NONE),
        8,
        MILLION,
    ),
    ("everything", {TRAIN: 512, STEPS: 4} | FP16 | zero(3, **BOTH), 64, 7_000_000_000),
)
ANSWERS = ("batch", "micro_batch", "accumulation", "sharded", "gpu_bytes")


def read_deepspeed(fn) -> Verdict:
    """Check `fn(settings, ranks, params)`: batch, what is sharded, bytes on the GPU."""
    cases = [
        (where, (settings, ranks, params), {})
        for where, settings, ranks, params in (*CASES, *hidden.more(drawn, 6))
    ]
    return examine_here("read_deepspeed", fn, cases, judge)


def drawn(random):
    """One of the cases, on other ranks and with another model."""
    where, settings, _, params = random.choice(CASES)
    return where, settings, random.choice((2, 4, 8, 16, 32)), params + random.randint(1, 9999)


def judge(answer, settings, ranks, params):
    if not isinstance(answer, dict) or set(answer) != set(ANSWERS):
        raise NotRight(
            f"returned {answer!r}",
            "Return a dict with the keys " + ", ".join(map(repr, ANSWERS)) + ".",
        )
    right = read(settings, ranks)
    sizes = {name: getattr(right, name) for name in ("batch", "micro_batch", "accumulation")}
    for name, value in sizes.items():
        if not is_number(answer[name]) or answer[name] != value:
            raise NotRight(
                f"{settings} on {ranks} ranks: you said {name} = {answer[name]!r}; it is {value}",
                hint_size(name, answer[name], right, settings),
            )
    judge_sharded(answer["sharded"], right)
    judge_bytes(answer["gpu_bytes"], right, params)


def hint_size(name, said, right, settings) -> str:
    """Which common mistake gives this size?"""
    if not is_number(said):
        return f"{name} is one number of sequences, or of forwards."
    if name == "batch":
        if said == right.micro_batch * right.ranks:
            return "One update has several forwards: count gradient_accumulation_steps."
        if said == right.micro_batch * right.accumulation:
            return "Each rank has its own sequences: count the ranks."
        if said == right.micro_batch:
            return "That is one forward of one rank. Count the ranks, and the accumulation."
    if TRAIN in settings and said == settings[TRAIN]:
        return "train_batch_size counts the sequences of all ranks for one update."
    if TRAIN in settings and MICRO in settings:
        return "The accumulation is not named: batch = micro-batch × accumulation × ranks."
    if TRAIN in settings and STEPS not in settings:
        return "With train_batch_size alone, DeepSpeed does not accumulate."
    return "batch = micro-batch × accumulation × ranks. Two of them give the third."


def judge_sharded(said, right):
    try:
        kinds = set(said)
    except TypeError:
        kinds = None
    if kinds is None or isinstance(said, str) or not kinds <= set(KINDS):
        raise NotRight(
            f"sharded: {said!r}",
            "sharded is a list with some of " + ", ".join(map(repr, KINDS)) + ", or an empty one.",
        )
    if kinds != set(right.sharded):
        hint = "Stage 1 shards the optimizer's states, stage 2 also gradients, stage 3 everything."
        if kinds == set(KINDS[3 - right.stage :]) and right.stage:
            hint = "The order is the other way round. " + hint
        raise NotRight(
            f"stage {right.stage}: you said {sorted(kinds)}; sharded are {list(right.sharded)}",
            hint,
        )


def judge_bytes(said, right, params):
    if not is_number(said):
        raise NotRight(f"gpu_bytes: {said!r}", "It is one number of bytes.")
    value = right.on_gpu(params).total
    if math.isclose(said, value, rel_tol=1e-9, abs_tol=1e-9):
        return
    states, each = right.states(params), right.each
    known = [
        (states.total, "Offloaded states wait in RAM or on an SSD, not on the GPU. Which kinds "
         "does each of offload_optimizer and offload_param move?"),
        (each.total * params, "That is the whole model. Which kinds does the stage divide by the "
         "number of ranks?"),
        (each.total * params / right.ranks, "Only the sharded kinds are divided by the ranks."),
        (value + states.gradients, "offload_optimizer moves the gradients with the states: "
         "the update runs on the CPU, and needs both."),
        (value * 8, "Return bytes, not bits."),
        (value / 1e9, "Return bytes. Do not divide by 1e9."),
        (value / 2**30, "Return bytes. Do not divide by 2**30."),
    ]  # fmt: skip
    for wrong, hint in known:
        if math.isclose(said, wrong, rel_tol=1e-9):
            raise NotRight(f"you said {said:,.10g} bytes; a GPU holds {value:,.10g}", hint)
    raise NotRight(
        f"you said {said:,.10g} bytes; a GPU holds {value:,.10g}",
        "A 16-bit parameter has 2 bytes, its gradient 2, and AdamW 12: an fp32 copy, two moments.",
    )
