"""Exercise of week 6: bytes of parameters, gradients and optimizer state on a rank, by stage."""

import math

from helpers.check import hidden
from helpers.check.direct import examine_here
from helpers.check.oracle import NotRight, is_number
from helpers.check.verdict import Verdict
from helpers.plans.zero_memory import States, padded, zero_memory

KINDS = ("parameters", "gradients", "optimizer")
MIXED, FP32 = (2, 2, 12), (4, 4, 8)
# Words, then parameters, ranks, stage, bytes of each kind.
CASES = (
    ("7.5B parameters on 64 ranks, data parallel", (7_500_000_000, 64, 0, *MIXED)),
    ("7.5B parameters on 64 ranks, stage 1", (7_500_000_000, 64, 1, *MIXED)),
    ("7.5B parameters on 64 ranks, stage 2", (7_500_000_000, 64, 2, *MIXED)),
    ("7.5B parameters on 64 ranks, stage 3", (7_500_000_000, 64, 3, *MIXED)),
    ("all in fp32, stage 1", (1200, 4, 1, *FP32)),
    ("a length that 4 ranks do not divide, stage 1", (1001, 4, 1, *MIXED)),
    ("a length that 8 ranks do not divide, stage 3", (1001, 8, 3, *MIXED)),
    ("fewer parameters than ranks, stage 2", (3, 8, 2, *MIXED)),
    ("one rank, stage 3", (1001, 1, 3, *MIXED)),
)


def bytes_per_rank(fn) -> Verdict:
    """Check `fn(params, ranks, stage, parameter_bytes, gradient_bytes, optimizer_bytes)`."""
    cases = [(where, arguments, {}) for where, arguments in (*CASES, *hidden.more(drawn))]
    return examine_here("bytes_per_rank", fn, cases, judge_bytes)


def drawn(random):
    params, ranks = random.randint(10, 10**9), random.randint(2, 99)
    return "another model", (params, ranks, random.randint(0, 3), *random.choice((MIXED, FP32)))


def right_bytes(params, ranks, stage, *each) -> dict[str, float]:
    """What is sharded is padded first; what is whole is not."""
    states = States(**dict(zip(KINDS, each, strict=True)))
    whole = zero_memory(params, 1, 0, each=states).by_kind()
    shard = zero_memory(padded(params, ranks), ranks, 3, each=states).by_kind()
    sharded = KINDS[::-1][:stage]  # stage 1: the optimizer's state, stage 2: gradients, too
    return {kind: (shard if kind in sharded else whole)[kind] for kind in KINDS}


def judge_bytes(answer, params, ranks, stage, *each):
    if not isinstance(answer, dict) or set(answer) != set(KINDS):
        raise NotRight(
            f"returned {answer!r}",
            "Return a dict with a number of bytes for each of " + ", ".join(map(repr, KINDS)) + ".",
        )
    right = right_bytes(params, ranks, stage, *each)
    for kind, of_one in zip(KINDS, each, strict=True):
        said = answer[kind]
        if not is_number(said):
            raise NotRight(f"{kind}: {said!r}", "Each value is one number of bytes.")
        if not math.isclose(said, right[kind], rel_tol=1e-12):
            raise NotRight(
                f"you said {said:,.10g} bytes of {kind}; a rank has {right[kind]:,.10g}",
                hint_bytes(kind, said, right[kind], params, ranks, stage, of_one, each),
            )


def hint_bytes(kind, said, right, params, ranks, stage, of_one, each) -> str:
    """Which common mistake gives this number?"""
    whole, tail = params * of_one, (params // ranks) * of_one
    sharded = right != whole
    known = [
        (params / ranks * of_one, sharded, "A buffer is padded until every rank has an equal "
         "shard, of whole numbers. How many numbers has a shard then?"),
        (tail, sharded, "The last numbers are on no rank: the division left a tail. How large "
         "must a shard be, so that all shards together hold every number?"),
        (whole, sharded, f"That is all of the {kind}. Which kinds does stage {stage} shard?"),
        (padded(params, ranks) // ranks * of_one, not sharded, f"Stage {stage} does not shard the "
         f"{kind}. Which stage is the first to do it?"),
        (whole / ranks, not sharded, f"Stage {stage} does not shard the {kind}. Which stage is "
         "the first to do it?"),
        (padded(params, ranks) * of_one, not sharded, "Only what is sharded needs padding."),
        (right / of_one, True, "Return bytes. That is how many numbers there are."),
        (right * 8, True, "Return bytes, not bits."),
        (right / 1e9, True, "Return bytes. Do not divide by 1e9."),
        (right / 2**30, True, "Return bytes. Do not divide by 2**30."),
        (right / ranks, True, "Divided by the ranks twice: a shard is one of N equal parts."),
        (right * sum(each) / of_one, True, f"That counts all kinds. How many bytes has the {kind} "
         "of one parameter?"),
    ]  # fmt: skip
    for value, possible, hint in known:
        if possible and math.isclose(said, value, rel_tol=1e-12):
            return hint
    if kind == "optimizer":
        missing = {4: "the fp32 copy of the parameter", 8: "the two moments"}
        for nbytes, what in missing.items():
            if math.isclose(said, right * (of_one - nbytes) / of_one, rel_tol=1e-12):
                return f"Without {what}. Use optimizer_bytes: it counts everything."
    return (
        f"How many numbers of {kind} does a rank have at stage {stage}, and how many bytes has "
        "each of them?"
    )
