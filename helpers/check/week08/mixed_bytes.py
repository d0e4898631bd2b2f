"""Exercise of week 8: bytes of a model's state in mixed precision, on a rank, by kind."""

import math

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict

KINDS = ("parameters", "gradients", "master copy", "moments")
# Words; parameters, ranks, stage, bytes of a low number, master copy?, bytes of a moment.
CASES = (
    ("bf16 with a master copy, one rank", (1_000_000, 1, 0, 2, True, 4)),
    ("all in fp32, one rank", (1_000_000, 1, 0, 4, False, 4)),
    ("bf16 alone, one rank", (1_000_000, 1, 0, 2, False, 2)),
    ("bf16 with a master copy, 64 ranks, stage 1", (7_000_000_000, 64, 1, 2, True, 4)),
    ("bf16 with 16-bit moments, 64 ranks, stage 1", (7_000_000_000, 64, 1, 2, True, 2)),
    ("bf16 with a master copy, 3 ranks, stage 2", (1001, 3, 2, 2, True, 4)),
    ("fp8 weights and gradients with a master copy, 4 ranks, stage 3", (1001, 4, 3, 1, True, 4)),
)


def mixed_bytes(fn) -> Verdict:
    """Check `fn(params, ranks, stage, low_bytes, master, moment_bytes) -> {kind: bytes}`."""
    cases = [(where, arguments, {}) for where, arguments in (*CASES, *hidden.more(drawn))]
    return examine_here("mixed_bytes", fn, cases, judge)


def drawn(random):
    params, ranks = random.randint(10, 10**9), random.randint(2, 99)
    low, master = random.choice((1, 2, 4)), random.random() < 0.5
    return "another model", (
        params,
        ranks,
        random.randint(0, 3),
        low,
        master,
        random.choice((2, 4)),
    )


def right_bytes(params, ranks, stage, low_bytes, master, moment_bytes) -> dict[str, int]:
    shard = math.ceil(params / ranks)
    first = shard if stage >= 1 else params
    return {
        "parameters": low_bytes * (shard if stage >= 3 else params),
        "gradients": low_bytes * (shard if stage >= 2 else params),
        "master copy": 4 * first * master,
        "moments": 2 * moment_bytes * first,
    }


def judge(answer, params, ranks, stage, low_bytes, master, moment_bytes):
    if not isinstance(answer, dict) or set(answer) != set(KINDS):
        raise NotRight(
            f"returned {answer!r}",
            "Return a dict with a number of bytes for each of " + ", ".join(map(repr, KINDS)) + ".",
        )
    right = right_bytes(params, ranks, stage, low_bytes, master, moment_bytes)
    for kind in KINDS:
        said = answer[kind]
        if not is_number(said):
            raise NotRight(f"{kind}: {said!r}", "Each value is one number of bytes.")
        if said != right[kind]:
            raise NotRight(
                f"you said {said:,.10g} bytes of {kind}; a rank has {right[kind]:,}",
                hint(kind, said, right[kind], params, ranks, master),
            )


def hint(kind: str, said: float, right: int, params: int, ranks: int, master: bool) -> str:
    """Which common mistake gives this number?"""
    if kind == "master copy" and not master:
        return "There is no master copy here: the optimizer updates the parameters themselves."
    if kind == "master copy" and said == 0:
        return "The optimizer updates a copy in fp32. How many bytes has one of its numbers?"
    if kind == "moments" and said * 2 == right:
        return "AdamW keeps two moments for each parameter."
    if said == right * 8:
        return "Return bytes, not bits."
    shard = math.ceil(params / ranks)
    if ranks > 1 and math.isclose(said * shard, right * params, rel_tol=1e-9):
        return f"This stage shards the {kind} over the ranks."
    if ranks > 1 and math.isclose(said * params, right * shard, rel_tol=1e-9):
        return f"This stage does not shard the {kind}. Which is the first that does?"
    if ranks > 1 and abs(said - right) <= 16:
        return "Shards are equal: the last one is padded. How many numbers has each?"
    if kind == "moments":
        return "How many moments are there, and which format has each? See moment_bytes."
    if kind == "gradients":
        return "A gradient has the format of its parameter: the backward runs in low precision."
    return "How many numbers of this kind has a rank, and how many bytes has each?"
